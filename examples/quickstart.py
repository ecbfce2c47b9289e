"""The story of the demo as a notebook, with plots.

python examples/quickstart.py     runs it as a script and leaves its plots
marimo edit examples/quickstart.py     opens it in the browser
"""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo

    mo.md(
        """
        # One model, two targets

        A small ResNet learns handwritten digits on the **`tpu`** device, eagerly and then with
        `torch.compile`. The same definition then becomes a **LiteRT** file for phones and boards.
        At the end all four ways of running it see the same held-out images.

        Without a TPU the device runs on the CPU: same code, same numbers.
        """
    )
    return (mo,)


@app.cell
def _():
    import sys
    from pathlib import Path

    import matplotlib

    if __name__ == "__main__":
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import torch
    from rich.console import Console

    import torch_tpu_unified as ttu

    sys.path.insert(0, str(Path(__file__).parent))
    import demo

    return Console, demo, plt, sys, torch, ttu


@app.cell
def _(mo):
    mo.md(
        """
        ## 1. Train on `tpu`

        `net.to("tpu")` is all it takes; half of the epochs run operator by operator, the other half
        through `torch.compile(net)`, which continues with the same weights.
        """
    )
    return


@app.cell
def _(Console, demo, sys):
    epochs = int(sys.argv[1]) if __name__ == "__main__" and len(sys.argv) > 1 else 6
    net, losses = demo.trained(epochs, Console())
    return losses, net


@app.cell
def _(losses, plt):
    loss_figure, _axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
    _start = 0
    for _way, _values in losses.items():
        _steps = range(_start, _start + len(_values))
        _axis.plot(_steps, _values, label=_way, linewidth=1.8)
        _start += len(_values)
    _axis.set(xlabel="step", ylabel="cross entropy", yscale="log", title="Training loss")
    _axis.grid(alpha=0.3)
    _axis.spines[["top", "right"]].set_visible(False)
    _axis.legend(frameon=False)
    loss_figure
    return (loss_figure,)


@app.cell
def _(mo):
    mo.md(
        """
        ## 2. Convert

        The trained weights come back to the CPU, and `ttu.convert` writes a LiteRT file in memory,
        runs it beside PyTorch and reports the error. On the command line the same is
        `tpu-convert demo.py:model --input 360x1x8x8`.
        """
    )
    return


@app.cell
def _(demo, net, ttu):
    _, _, images, labels = demo.digits()
    deployed = demo.fresh().eval()
    deployed.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
    converted = ttu.convert(deployed, (images,))
    file = converted.save("quickstart.tflite")
    print(converted.report)
    return file, images, labels


@app.cell
def _(mo):
    mo.md(
        """
        ## 3. Compare

        CPU PyTorch, the device in both ways and the LiteRT file on images that none of them has seen:
        """
    )
    return


@app.cell
def _(demo, file, images, labels, mo, net):
    logits = demo.logits_of_all(net, file, images)
    _reference = logits["CPU PyTorch"]
    rows = [
        {
            "target": target,
            "test accuracy": f"{(found.argmax(1) == labels).float().mean().item():.2%}",
            "largest logit difference": f"{(found - _reference).abs().max().item():.1e}",
        }
        for target, found in logits.items()
    ]
    for _row in rows:
        print("  ".join(f"{value:>14}" for value in _row.values()))
    mo.ui.table(rows, selection=None)
    return (logits,)


@app.cell
def _(images, labels, logits, plt, torch):
    # The eight images with the smallest margin between the first and the second guess.
    _first, _second = torch.softmax(logits["CPU PyTorch"], 1).topk(2).values.T
    _hard = (_first - _second).argsort()[:8]
    prediction_figure, _axes = plt.subplots(
        5, 8, figsize=(10, 6.4), layout="constrained", height_ratios=[1.3, 1, 1, 1, 1]
    )
    for _column, _i in enumerate(_hard.tolist()):
        _axes[0, _column].imshow(images[_i, 0], cmap="gray_r")
        _axes[0, _column].set(xticks=[], yticks=[], title=f"true {labels[_i].item()}")
        for _row, (_target, _found) in enumerate(logits.items(), start=1):
            _axis, _share = _axes[_row, _column], torch.softmax(_found[_i], 0)
            _colors = ["tab:blue" if d == _share.argmax() else "lightsteelblue" for d in range(10)]
            _axis.bar(range(10), _share, color=_colors)
            _axis.set(ylim=(0, 1), yticks=[], xticks=range(10) if _row == 4 else [])
            _axis.tick_params(labelsize=7, length=0)
            _axis.spines[["top", "right", "left"]].set_visible(False)
            if _column == 0:
                _axis.set_ylabel(_target, rotation=0, ha="right", va="center")
    prediction_figure.suptitle("The eight hardest held-out images: share given to each digit")
    prediction_figure
    return (prediction_figure,)


@app.cell
def _(loss_figure, prediction_figure):
    if __name__ == "__main__":
        loss_figure.savefig("quickstart_loss.png", dpi=120)
        prediction_figure.savefig("quickstart_predictions.png", dpi=120)
        print("quickstart_loss.png, quickstart_predictions.png, quickstart.tflite written")
    return


if __name__ == "__main__":
    app.run()
