"""Does `torch.compile` on tpu agree with CPU eager, over the model families of a library?"""
