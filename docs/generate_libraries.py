"""Make the second table of `docs/live-modules.md`: what other libraries do with the models and files of t7bridge.

    pip install torchvision lightning transformers accelerate
    python docs/generate_libraries.py

They are no part of the tests' environment, as they are larger than all that is; the table has the versions that were
there when it was made.
"""

from __future__ import annotations

import copy
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from generate_uses import MODELS, PAGE, ROOT, cell, check, example, program, write_between

import t7bridge

MARKS = "<!-- libraries -->\n", "<!-- end of libraries -->\n"


class Case(NamedTuple):
    """A model and what belongs to it."""

    name: str
    model: torch.nn.Module
    input: Any
    folder: Path


def case_copy(case: Case) -> tuple[torch.nn.Module, Any]:
    """Return copies of the model and the input, which a use may change."""
    return copy.deepcopy(case.model), copy.deepcopy(case.input)


def extract_features(case: Case, leaf_modules: list[type[torch.nn.Module]]) -> None:
    """Take the output of a layer in the middle, and compare that of the model."""
    from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

    model, value = case_copy(case)
    options = {"leaf_modules": leaf_modules}
    _, names = get_graph_node_names(model, options)
    layers = dict(model.named_modules())
    nodes = [name for name in names if name in layers]
    middle = nodes[len(nodes) // 2]
    extractor = create_feature_extractor(model, [middle], tracer_kwargs=options)
    outputs: list[Any] = []
    hook = layers[middle].register_forward_hook(lambda module, inputs, output: outputs.append(output))
    model(copy.deepcopy(value))
    hook.remove()
    check(extractor(value)[middle], outputs[0])


def features(case: Case) -> None:
    """Without options."""
    extract_features(case, [])


def features_of_leaves(case: Case) -> None:
    """With the classes of all layers as leaves."""
    extract_features(case, [type(layer) for layer in case.model.modules() if not any(layer.children())])


def fit(case: Case) -> None:
    """Train an epoch with Lightning, and load its checkpoint."""
    import lightning
    from torch.utils._pytree import tree_leaves

    class Tuned(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = copy.deepcopy(case.model).train()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            assert self.model.training
            return sum(leaf.square().mean() for leaf in tree_leaves(self.model(batch)))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    tuned = Tuned()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=case.folder, enable_checkpointing=False,
    )  # fmt: skip
    data = torch.utils.data.DataLoader([case.input], batch_size=None)
    trainer.fit(tuned, data)
    trainer.save_checkpoint(case.folder / "tuned.ckpt")
    changed = [not torch.equal(old, new) for old, new in zip(case.model.parameters(), tuned.model.parameters())]
    assert any(changed)
    restored = Tuned.load_from_checkpoint(case.folder / "tuned.ckpt")
    check(list(restored.state_dict().values()), list(tuned.state_dict().values()))
    # What was trained goes back to Lua.
    source = ROOT / f"testfiles/models/{case.name}.t7"
    state = t7bridge.load_state_dict(case.folder / "tuned.ckpt", at="root.state_dict", strip=["model"])
    if set(state) == set(t7bridge.load_state_dict(source)):
        torch.save(state, case.folder / "tuned.pt")
        t7bridge.convert(case.folder / "tuned.pt", case.folder / "tuned.t7", template=source, force=True)


def shards_of(case: Case, prefix: str = "") -> Path:
    """Return a folder with the weights of a model in several safetensors files."""
    folder = case.folder / f"{case.name}-{prefix}"
    folder.mkdir(exist_ok=True)
    torch.save(case.model.state_dict(), case.folder / "weights.pt")
    rename = {"": prefix} if prefix else {}
    target = folder / "model.safetensors"
    t7bridge.convert(case.folder / "weights.pt", target, shard_size="2kB", rename=rename, force=True)
    assert (folder / "model.safetensors.index.json").exists()
    return folder


def without_weights(case: Case) -> torch.nn.Module:
    """Return the model with zeros for weights."""
    model, _ = case_copy(case)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def pretrained(case: Case) -> None:
    """Load shards as transformers' models are loaded."""
    import transformers

    class Config(transformers.PretrainedConfig):
        model_type = "lua"

    class Net(transformers.PreTrainedModel):
        config_class = Config

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.net = without_weights(case)
            self.post_init()

        def _init_weights(self, module: torch.nn.Module) -> None:
            pass

        def forward(self, value: Any) -> Any:
            return self.net(value)

    folder = shards_of(case, "net")
    Config().save_pretrained(folder)
    net, loading = Net.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    _, value = case_copy(case)
    check(net.eval()(value), case.model(copy.deepcopy(value)))


def accelerated(case: Case) -> None:
    """Load shards into a model with accelerate."""
    import accelerate

    net = without_weights(case)
    accelerate.load_checkpoint_in_model(net, str(shards_of(case)))
    _, value = case_copy(case)
    check(net(value), case.model(copy.deepcopy(value)))


def from_hub(case: Case) -> None:
    """Load shards into a model as huggingface_hub does."""
    import huggingface_hub

    net = without_weights(case)
    huggingface_hub.load_torch_model(net, shards_of(case))
    _, value = case_copy(case)
    check(net(value), case.model(copy.deepcopy(value)))


USES: dict[str, tuple[str, Callable[[Case], None]]] = {
    "`create_feature_extractor(model, names)`": ("torchvision", features),
    "the same with `leaf_modules`, as below": ("torchvision", features_of_leaves),
    "`Trainer.fit` with `self.model = ….train()`, `load_from_checkpoint`, back to Lua": ("lightning", fit),
    "`from_pretrained` of the shards of `--shard-size`": ("transformers", pretrained),
    "`load_checkpoint_in_model` of these": ("accelerate", accelerated),
    "`load_torch_model` of these": ("huggingface_hub", from_hub),
}


def failing(name: str, model: torch.nn.Module, folder: Path) -> list[str]:
    """Return the uses that do not work with a model; print why."""
    uses: list[str] = []
    for text, (_, use) in USES.items():
        try:
            use(Case(name, copy.deepcopy(model), example(name), folder))
        except Exception as error:  # of any library
            print(f"{name}, {text}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            uses.append(text)
    return uses


def table() -> str:
    """Return the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    live: dict[str, list[str]] = {use: [] for use in USES}
    page: dict[str, list[str]] = {use: [] for use in USES}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            for model, failures in (
                (t7bridge.load_module(ROOT / f"testfiles/models/{name}.t7"), live),
                (program(name, folder), page),
            ):
                for use in failing(name, model, Path(folder)):
                    failures[use].append(name)
    rows = []
    for use, (library, _) in USES.items():
        release = version(library).partition("+")[0]
        rows.append(f"| {library} {release} | {use} | {cell(live[use])} | {cell(page[use])} |")
    return "\n".join(["| | | `load_module` | `model.py` of `module` |", "| --- | --- | --- | --- |", *rows, ""])


def main() -> None:
    """Write the table into the page."""
    write_between(MARKS, table())
    print(PAGE)


if __name__ == "__main__":
    main()
