"""Patched models where they train: Trainer, accelerate, checkpointing, half precision, several processes, the example."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

import accelerate
import pytest
import torch
import transformers
from torch import nn

from samplewise.integrations.transformers import patch
from tests.integrations.parakeets import PAD, batch_of, furthest, gradients, make, still, truth, twin
from tests.ops.test_distributed import process_group

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "finetune_parakeet.py"
LABELS, FRAMES = (5, 3, 1, 4), (120, 96, 64, 120)
TRAINED = [(reduction, parts) for reduction in (None, "mean", "sum") for parts in (1, 2)]


@pytest.fixture(autouse=True)
def fresh_state():
    """accelerate keeps one state a process, which the first to ask for it makes."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def untied(kind="ParakeetForRNNT", **options):
    """A model in which no utterance sees another: its batch normalisation left out."""
    model = make(kind, **options)
    for layer in model.encoder.layers:
        layer.conv.norm = nn.Identity()
    return model


def collate(pad):
    """Rows to a batch, labels as short as they can be."""

    def batch(rows):
        given = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        width = int((given["labels"] != -100).sum(1).max())
        labels = given.pop("labels")[:, :width]
        return {"input_features": given["input_features"], "attention_mask": given["attention_mask"],
                "labels": labels.masked_fill(labels == -100, pad)}  # fmt: skip

    return batch


def trainer(model, folder, pad=-100, **arguments):
    batch = batch_of(labels=LABELS, frames=FRAMES)
    rows = [{name: x[b] for name, x in batch.items() if name != "decoder_input_ids"} for b in range(4)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=1, learning_rate=1.0, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0,
        remove_unused_columns=False, report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no",
        logging_strategy="no", prediction_loss_only=True, dataloader_pin_memory=False, **arguments,
    )  # fmt: skip
    return transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, data_collator=collate(pad))


def steps(model, folder, **arguments):
    """What one step of gradient descent takes from every parameter."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer(model, folder, **arguments).train()
    return {name: before[name] - p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "kind, reduction",
    [("ParakeetForRNNT", None), ("ParakeetForRNNT", "mean_batch"), ("ParakeetForRNNT", "sum"), ("ParakeetForTDT", None)],
)
def test_accumulation_changes_no_gradient(kind, reduction, tmp_path):
    """Four utterances at once, and one after another, are one batch."""
    model = patch(untied(kind), reduction=reduction)
    batch = batch_of(kind, labels=LABELS, frames=FRAMES)
    right = gradients(model, model(**batch).loss)
    for at_once, parts in ((4, 1), (1, 4), (2, 2)):
        found = steps(twin(model), tmp_path, per_device_train_batch_size=at_once, gradient_accumulation_steps=parts)
        assert furthest(found, right) <= 1e-7, (at_once, parts)


def test_accumulation_where_padding_is_counted(tmp_path):
    """Trainer counts labels that are not -100: parts with much padding weigh a little more, and all weights are one."""
    model = patch(untied())
    right = gradients(model, model(**batch_of(labels=LABELS, frames=FRAMES)).loss)
    whole = steps(twin(model), tmp_path, pad=PAD, per_device_train_batch_size=4, gradient_accumulation_steps=1)
    assert furthest(whole, right) <= 1e-7
    found = steps(twin(model), tmp_path, pad=PAD, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    size = sum(float(x.square().sum()) for x in found.values()) / sum(float(x.square().sum()) for x in right.values())
    assert 0.5 < size < 2.0 and furthest(found, right) > 1e-4


def test_evaluation_has_a_loss_and_no_logits(tmp_path):
    model = patch(untied())
    loss = model(**batch_of(labels=LABELS, frames=FRAMES)).loss
    found = trainer(model, tmp_path, per_device_eval_batch_size=4).evaluate()
    assert found["eval_loss"] == pytest.approx(loss.item(), rel=1e-6)


def test_accelerate_with_mixed_precision():
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    model, batch = still(patch(make(dtype=torch.float32), reduction="sum")), batch_of(dtype=torch.float32)
    right = model(**batch).loss
    prepared = accelerator.prepare(model)
    output = prepared(**batch)
    assert output.loss.dtype == torch.float32 and output.loss != right and output.logits is None
    torch.testing.assert_close(output.loss, right, rtol=0.02, atol=0.0)
    accelerator.backward(output.loss)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert torch.equal(accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)(**batch).loss, right)


@pytest.mark.parametrize("kind", ["ParakeetForRNNT", "ParakeetForTDT"])
def test_autocast(kind):
    stock = still(make(kind, dtype=torch.float32))
    batch = batch_of(kind, dtype=torch.float32)
    model = still(patch(twin(stock), reduction="sum"))
    right = gradients(stock, truth(stock, batch, "sum"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = model(**batch).loss, truth(stock, batch, "sum")
    found, plain = gradients(model, ours), gradients(stock, theirs)
    name = "joint.head.weight"
    assert furthest({name: found[name]}, {name: right[name]}) <= 2 * furthest({name: plain[name]}, {name: right[name]}) + 1e-3


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
def test_gradient_checkpointing():
    stock, batch = still(make()), batch_of()
    right = gradients(stock, truth(stock, batch, "sum"))
    model = still(patch(twin(stock), reduction="sum"))
    model.gradient_checkpointing_enable()
    assert model.encoder.layers[0].gradient_checkpointing
    assert furthest(gradients(model, model(**batch).loss), right) <= 1e-9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore::DeprecationWarning")  # of the compiler
def test_a_compiled_model():
    model, batch = still(patch(make(), reduction="sum")), batch_of()
    right = model(**batch).loss
    loss = torch.compile(model, backend="eager")(**batch).loss
    torch.testing.assert_close(loss, right, rtol=1e-10, atol=0.0)
    loss.backward()


def of_rank(rank):
    return {name: x[rank : rank + 1] for name, x in batch_of(labels=(5, 3), frames=(120, 96), dtype=torch.float32).items()}


WAYS = {"replicated": None, "sharded": (), "joint sharded alone": ("joint",), "output layer sharded alone": ("joint.head",)}


def wrapped(way):
    from torch.distributed.fsdp import fully_shard

    model = patch(untied(dtype=torch.float32), reduction="sum")
    if WAYS[way] is None:
        return nn.parallel.DistributedDataParallel(model)
    for part in WAYS[way]:
        fully_shard(model.get_submodule(part))
    return fully_shard(model)


def trained(rank, port, folder):
    """Steps of Trainer in two processes, each with two of the four utterances, at once or one after another."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    found = {}
    for reduction, parts in TRAINED:
        model, sizes = patch(untied(), reduction=reduction), {"per_device_train_batch_size": 2 // parts}
        taken = steps(model, folder, gradient_accumulation_steps=parts, ddp_backend="gloo", **sizes)
        found[reduction, parts] = {name.removeprefix("module."): x for name, x in taken.items()}
    torch.distributed.destroy_process_group()
    return found


def process(rank, port, folder):
    with process_group(rank, folder):
        found = {}
        for way in WAYS:
            model = wrapped(way)
            found[way] = []
            for _ in range(2):  # the second step finds nothing left over from the first
                model.zero_grad()  # before the forward, which puts whole parameters in the places of the sharded ones
                of_all = gradients(model, model(**of_rank(rank)).loss)
                found[way].append({
                    name.removeprefix("module."): x.full_tensor() if hasattr(x, "full_tensor") else x
                    for name, x in of_all.items()
                })  # fmt: skip
    torch.save(found | trained(rank, port, folder), f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("no gloo")
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(process, args=(port, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_two_processes(way, found):
    stock = untied(dtype=torch.float32)
    alone = [gradients(stock, truth(stock, of_rank(rank), "sum")) for rank in range(2)]
    right = {name: (alone[0][name] + alone[1][name]) / 2 for name in alone[0]}
    for per_rank in found:
        for step in per_rank[way]:
            assert furthest(step, right) <= 1e-4
    assert furthest(*alone) > 1e-2, "both processes had the same batch"


@pytest.mark.slow
@pytest.mark.parametrize("reduction, parts", TRAINED)
def test_trainer_in_two_processes(reduction, parts, found):
    """Their batches, and those that they accumulate, are one."""
    model = patch(untied(), reduction=reduction)
    right = gradients(model, model(**batch_of(labels=LABELS, frames=FRAMES)).loss)
    for per_rank in found:
        assert furthest(per_rank[reduction, parts], right) <= 1e-7


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("finetune_parakeet", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("arguments", [[], ["--tdt"]])
def test_the_example_learns_and_saves(arguments, example, tmp_path, capsys):
    folder = tmp_path / "tuned"
    before, after = example.main([*arguments, "--output", str(folder), "--steps", "60"])
    assert after < 0.75 * before
    assert f"{before:.2f} -> {after:.2f}" in capsys.readouterr().out
    kind = transformers.AutoModelForTDT if arguments else transformers.AutoModelForRNNT
    assert type(kind.from_pretrained(folder)).__name__ == ("ParakeetForTDT" if arguments else "ParakeetForRNNT")


def test_the_example_takes_a_model_and_recordings_from_folders(example, tmp_path):
    """As those of a hub, with a processor beside the model."""
    model, processor = example.tiny("rnnt")
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    example.write_recordings(tmp_path / "data", example.Tones(4))
    before, after = example.main([f"--{name}={tmp_path / name}" for name in ("model", "data", "output")] + ["--steps=2"])
    assert before > 0 and after > 0 and (tmp_path / "output" / "config.json").exists()


def test_the_help_of_the_example(example, capsys):
    with pytest.raises(SystemExit):
        example.main(["--help"])
    text = capsys.readouterr().out
    assert "--model nvidia/parakeet-tdt-0.6b-v3" in text and "manifest.jsonl" in text
