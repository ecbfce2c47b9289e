"""The device as a PyTorch user meets it: creation, printing, indexing, copies, files, random state.

Every value is compared with what CPU PyTorch gives for the same program.
"""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from cloud_backend import events
from torch_tpu_unified.core.errors import LoweringError, NotYetAvailable

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.device.type == "tpu"
    torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(3))


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **environment},
    )


def test_bare_import_of_torch_finds_the_device():
    done = run_python(
        "import torch; print((torch.ones(2, device='tpu') + 1).tolist())", TTU_QUIET="0"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[2.0, 2.0]"
    assert len([s for s in done.stderr.splitlines() if "no TPU" in s]) == 1


def test_registering_starts_no_jax_and_no_heavy_package():
    code = (
        "import torch, torch_tpu_unified, sys; torch.device('tpu'); torch.tpu.is_available();"
        "print([m for m in ('jax', 'transformers', 'ai_edge_litert', 'onnx') if m in sys.modules])"
    )
    done = run_python(code)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype):
    values = (torch.arange(-3, 9).reshape(3, 4).abs() % 5).to(dtype)
    there = values.to("tpu")
    assert there.dtype == dtype and there.is_tpu and there.shape == values.shape
    same(there, values)
    same(values.t().to("tpu"), values.t())
    assert values.t().to("tpu").stride() == values.t().stride()
    assert there.tolist() == values.tolist()
    assert there[1, 2].item() == values[1, 2].item()


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 4)])
def test_empty_and_scalar_shapes(shape):
    a = torch.ones(shape)
    same(a.to("tpu") + 1, a + 1)
    assert (a.to("tpu") + 1).stride() == (a + 1).stride()
    same(a.to("tpu").sum(), a.sum())
    same(torch.zeros(shape, device="tpu"), torch.zeros(shape))


def test_a_copy_from_the_host_does_not_share_its_memory():
    host = torch.zeros(1024)
    there = host.to("tpu")
    host.fill_(1)
    assert there.sum().item() == 0
    back = there.cpu()
    there.add_(1)
    assert back.sum().item() == 0


def test_numpy_of_a_cpu_copy(x):
    np.testing.assert_array_equal(x.to("tpu").cpu().numpy(), x.numpy())
    with pytest.raises(TypeError):
        x.to("tpu").numpy()


@pytest.mark.parametrize(
    "value", [torch.ones(2), torch.tensor(3), torch.ones(0, 2), torch.ones(100, 100)]
)
def test_printing(value):
    expected = repr(value)[:-1]
    assert repr(value.to("tpu")).startswith(expected.rstrip(")").split(", size=")[0])
    assert "device='tpu:0'" in repr(value.to("tpu"))


INDEXING = {
    "int": lambda a: a[1],
    "negative": lambda a: a[-1, -2],
    "slice": lambda a: a[1:3, ::2],
    "ellipsis": lambda a: a[..., None, 0],
    "mask": lambda a: a[a > 0],
    "row mask": lambda a: a[torch.tensor([True, False, True, False], device=a.device)],
    "tensor": lambda a: a[torch.tensor([0, -1], device=a.device)],
    "two tensors": lambda a: a[
        torch.tensor([0, 2], device=a.device), torch.tensor([1, -1], device=a.device)
    ],
    "cpu index": lambda a: a[torch.tensor([0, 2])],
    "list": lambda a: a[[2, 0]],
    "mixed": lambda a: a[:, torch.tensor([3, 0], device=a.device)],
    "scalar true": lambda a: a[True],
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXING)
def test_reading_by_index(name, x):
    same(INDEXING[name](x.to("tpu")), INDEXING[name](x))


ASSIGNMENTS = {
    "int": lambda a: a.__setitem__(1, 7.0),
    "slice": lambda a: a.__setitem__((slice(1, 3), slice(None, None, 2)), -1.0),
    "mask": lambda a: a.__setitem__(a > 0, 0.5),
    "mask tensor": lambda a: a.__setitem__(a > 0, a[a > 0] * 2),
    "tensor": lambda a: a.__setitem__(
        torch.tensor([0, 2], device=a.device), torch.ones(5, device=a.device)
    ),
    "broadcast": lambda a: a.__setitem__(slice(None), torch.arange(5.0, device=a.device)),
    "cpu scalar": lambda a: a.__setitem__((0, 0), torch.tensor(9.0)),
    "transposed": lambda a: a.t().__setitem__(slice(1, 2), 3.0),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_writing_by_index(name, x):
    ours, theirs = x.to("tpu"), x.clone()
    ASSIGNMENTS[name](ours)
    ASSIGNMENTS[name](theirs)
    same(ours, theirs)


def test_copies_and_pickles_keep_values_and_sharing(x):
    t = x.to("tpu")
    pair = [t, t[1:]]
    deep = copy.deepcopy(pair)
    deep[0].fill_(1)
    assert deep[1].sum().item() == 15
    same(t, x)
    again = pickle.loads(pickle.dumps(pair))
    same(again[1], x[1:])


def _through_file(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True, **options)


def test_checkpoints_in_both_directions(x):
    t = x.to("tpu")
    saved = {"whole": t, "part": t[1:], "half": t.bfloat16()}
    there = _through_file(saved)
    same(there["part"], x[1:])
    assert there["whole"].data_ptr() + 5 * 4 == there["part"].data_ptr()
    there["whole"].zero_()
    assert there["part"].abs().sum().item() == 0
    here = _through_file(saved, map_location="cpu")
    assert here["whole"].device.type == "cpu"
    torch.testing.assert_close(here["half"], x.bfloat16())
    same(_through_file(x, map_location="tpu"), x)
    same(_through_file(x, map_location=torch.device("tpu", 0)), x)


def test_a_tpu_checkpoint_loads_without_the_device(tmp_path, x):
    torch.save({"w": x.to("tpu")}, tmp_path / "a.pt")
    code = (
        f"import torch; d = torch.load({str(tmp_path / 'a.pt')!r}, map_location='cpu');"
        "print(d['w'].device, float(d['w'].sum()))"
    )
    done = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "cpu"


def test_state_dict_with_tied_weights():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(3, 3)
            self.b = torch.nn.Linear(3, 3)
            self.b.weight = self.a.weight

    model = Tied().to("tpu")
    assert model.a.weight is model.b.weight
    state = _through_file(model.state_dict())
    assert state["a.weight"].data_ptr() == state["b.weight"].data_ptr()
    other = Tied()
    other.load_state_dict(state)
    torch.testing.assert_close(other.a.weight, model.a.weight.cpu())


# ---- devices, random numbers


def test_names_and_properties():
    assert torch.tpu.is_available() and torch.tpu.device_count() == 1
    assert torch.tpu.current_device() == 0
    torch.tpu.set_device(0)
    assert torch.tpu.get_device_name()
    assert torch.tpu.get_device_properties().platform
    assert torch.bfloat16 in torch.tpu.get_amp_supported_dtype()
    assert torch.ones(1).tpu().is_tpu and not torch.ones(1).is_tpu
    assert torch.nn.Linear(2, 2).tpu().weight.device == torch.device("tpu", 0)
    with pytest.raises(RuntimeError, match="tpu:1"):
        torch.tpu.set_device(1)
    with torch.tpu.device(0):
        pass


def test_torch_accelerator_finds_the_device():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.device_count() == 1
    torch.accelerator.synchronize()
    assert torch.accelerator.current_device_index() == 0


def test_streams_and_events():
    start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    start.record()
    with torch.tpu.stream(torch.tpu.Stream()):
        torch.ones(64, 64, device="tpu") @ torch.ones(64, 64, device="tpu")
    end.record()
    torch.tpu.synchronize()
    assert start.elapsed_time(end) >= 0
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    with pytest.raises(RuntimeError):
        torch.tpu.Event().elapsed_time(end)


def test_memory_statistics():
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    a = torch.ones(1 << 16, device="tpu")
    assert torch.tpu.memory_allocated() - before == 4 << 16
    del a
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() >= before + (4 << 16)
    assert torch.tpu.memory_stats()["allocated_bytes.all.peak"] == torch.tpu.max_memory_allocated()


def test_manual_seed_and_states():
    torch.manual_seed(7)
    first = torch.rand(4, device="tpu")
    second = torch.rand(4, device="tpu")
    torch.manual_seed(7)
    assert torch.equal(torch.rand(4, device="tpu"), first)
    assert not torch.equal(first, second)
    state = torch.tpu.get_rng_state()
    a = torch.randn(3, device="tpu")
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.randn(3, device="tpu"), a)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        inside = torch.rand(2, device="tpu")
    assert torch.equal(torch.rand(2, device="tpu"), inside)
    torch.tpu.manual_seed_all(1)
    assert torch.tpu.initial_seed() == 1


def test_generators():
    g = torch.Generator(device="tpu").manual_seed(5)
    assert g.device == torch.device("tpu", 0) and isinstance(g, torch.Generator)
    a = torch.rand(4, generator=g, device="tpu")
    b = torch.empty(4, device="tpu").uniform_(generator=g)
    g.manual_seed(5)
    assert torch.equal(torch.rand(4, generator=g, device="tpu"), a) and not torch.equal(a, b)
    state = g.get_state()
    c = torch.randn(2, generator=g, device="tpu")
    g.set_state(state)
    assert torch.equal(torch.randn(2, generator=g, device="tpu"), c)
    assert isinstance(torch.Generator(), torch.Generator)
    assert torch.Generator(device="cpu").device.type == "cpu"
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, generator=torch.Generator(), device="tpu")


def test_random_numbers_are_what_they_say():
    torch.manual_seed(0)
    u = torch.rand(20000, device="tpu")
    assert u.min().item() >= 0 and u.max().item() < 1 and abs(u.mean().item() - 0.5) < 0.02
    n = torch.randn(20000, device="tpu")
    assert abs(n.mean().item()) < 0.03 and abs(n.std().item() - 1) < 0.03
    p = torch.randperm(100, device="tpu")
    assert sorted(p.tolist()) == list(range(100))
    kept = torch.nn.functional.dropout(torch.ones(20000, device="tpu"), 0.25)
    assert abs((kept != 0).float().mean().item() - 0.75) < 0.02


def test_a_data_loader_that_pins_memory():
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2, pin_memory=True)
    assert [batch.to("tpu", non_blocking=True).sum().item() for (batch,) in loader] == [1, 5, 9]
    assert not torch.ones(1).is_pinned()


def test_transformers_trainer_finds_the_device(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=50,
    )
    model = transformers.BertForSequenceClassification(config)
    data = [{"input_ids": torch.arange(8) + i, "labels": i % 2} for i in range(8)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=2, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    assert trainer.args.device.type == "tpu"
    assert trainer.train().training_loss > 0
    assert model.device.type == "tpu"


# ---- what is refused


def test_two_devices_in_one_call(x):
    with pytest.raises(RuntimeError, match="same device"):
        x.to("tpu") + x
    same(x.to("tpu") * torch.tensor(2.0), x * 2)


def test_wrong_arguments_raise_what_the_cpu_raises(x):
    t = x.to("tpu")
    for call in (
        lambda a: a @ a,
        lambda a: a.view(3, 7),
        lambda a: a + torch.ones(3, device=a.device),
        lambda a: a.sum(5),
        lambda a: torch.cat([a, a[0]]),
        lambda a: a.expand(2, 2).add_(1),
        lambda a: torch.zeros(1, device=a.device).expand(4).add_(1),
        lambda a: a.int().add_(1.5),
    ):
        with pytest.raises(Exception) as theirs:
            call(x)
        with pytest.raises(type(theirs.value)):
            call(t)


@pytest.fixture
def foreign_operator(monkeypatch):
    """An operator that only the CPU has; what it counts is forgotten afterwards."""
    monkeypatch.setattr(events.Counters, "fallbacks", {})
    library = torch.library.Library("ttu_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    yield torch.ops.ttu_test.twice.default
    library._destroy()


def test_a_missing_operator_says_what_to_do(foreign_operator):
    from torch_tpu_unified.core import flags

    t = torch.ones(4, 4, device="tpu")
    before = torch.tpu.fallback_count()
    with pytest.raises(LoweringError) as raised:
        foreign_operator(t)
    for part in ("ttu_test.twice", "TTU_FALLBACK=warn", "test_device.py", "f32[4, 4]"):
        assert part in str(raised.value)
    assert torch.tpu.fallback_count() == before
    with flags.FALLBACK("warn"):
        same(foreign_operator(t), torch.full((4, 4), 2.0))
    assert torch.tpu.fallback_count() == before + 1


def test_names_of_later_stages_raise_a_clear_error():
    import torch.tpu.ops as ops  # noqa: F401

    for call in (
        lambda: torch.tpu.pallas.get_pallas_mesh(),
        lambda: torch.tpu.ops.ragged_dot(),
        lambda: torch.tpu.optimizers.AdamW(),
        lambda: torch.tpu.distributed.set_tpu_launch_env(),
    ):
        with pytest.raises(NotYetAvailable, match="not available yet"):
            call()


def test_other_devices_are_untouched():
    code = (
        "import torch, torch_tpu_unified;"
        "f = torch.compile(lambda a: a + 1, backend='eager'); print(f(torch.ones(2)).tolist());"
        "c = torch.compile(torch.nn.Linear(2, 2)); print(type(c).__name__);"
        "print(torch.Generator().device, torch.ones(2).untyped_storage().clone().device)"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[2.0,", "2.0]", "OptimizedModule", "cpu", "cpu"]
