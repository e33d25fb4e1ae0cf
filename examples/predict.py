"""The class of every image below a folder and its probability, by a network that dali-pipes train
has trained, as a table of Parquet or CSV.

python examples/predict.py runs/train/RUN/best.pt /my/images classes.parquet

Sizes are those of `transform=eval`; mean and std are those of the run. An image that cannot be read
has a row that says why, and changes no other.
"""

import sys

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torchvision import models

import dali_pipes as dp


def load(checkpoint):
    """The network with its weights, averaged ones if there are any, the names of its classes, and
    the options of its run.

    The file may be a stranger's: only a network of torchvision is built by the name in it. Build
    any other one here.
    """
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    name, classes = saved["name"], saved["classes"]
    if saved["task"] != "classification":
        sys.exit(f"{checkpoint}: of the task {saved['task']}, not of one class for each image")
    if name not in models.list_models(models) or saved["model_options"]:
        sys.exit(f"{checkpoint}: of {name}, which is not torchvision's; build it in load()")
    network = models.get_model(name, num_classes=len(classes))
    weights = dict(saved["ema"] or saved["model"])
    weights.pop("n_averaged", None)
    network.load_state_dict({key.removeprefix("module."): weights[key] for key in weights})
    return network.eval(), classes, saved["options"]


def main(checkpoint, images, out, size=224, resize=256, batch_size=64, config=None):
    network, classes, options = load(checkpoint)
    network.to("cuda" if torch.cuda.is_available() else "cpu")
    manifest = dp.Manifest.open(images, with_labels=False)
    mean, std = options["transform.mean"], options["transform.std"]
    with dp.build_loader(
        manifest,
        config or dp.DaliConfig(),
        transform=dp.EvalTransform(size=size, resize=resize, mean=mean, std=std),
        batch_size=batch_size,
        on_bad_sample="substitute",  # a good image takes its place
        max_bad_fraction=0.1,
    ) as loader:
        with torch.inference_mode():
            best = [network(batch.images).softmax(1).max(1) for batch in loader]
        problems = {sample: why for sample, _, why in loader.bad_samples}

    shares, found = (torch.cat(each).tolist() for each in zip(*best, strict=True))
    rows = [{"path": manifest.name(sample)} for sample in range(len(manifest))]
    for sample, row in enumerate(rows):
        if sample in problems:
            row["problem"] = problems[sample]
        else:
            row |= {"class": classes[found[sample]], "probability": shares[sample]}
    rows += [{"path": f"{manifest.root}/{path}", "problem": why} for path, why in manifest.problems]

    types = {"path": "string", "class": "string", "probability": "float32", "problem": "string"}
    table = pa.Table.from_pylist(rows, pa.schema(types.items()))
    (pa.csv.write_csv if str(out).endswith(".csv") else pa.parquet.write_table)(table, out)
    bad = len(problems) + len(manifest.problems)
    print(f"{out}: {len(rows):,} images, of which {bad:,} cannot be read")


if __name__ == "__main__":
    main(*sys.argv[1:])
