"""Columns of boxes and keypoints that nobody reads are a doubt, however they are written."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import write_pictures

import dali_pipes as dp

FIXED = pa.list_(pa.float32(), 4)
BOX = [10.0, 20.0, 300.0, 400.0]
SIDES = {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}


def opened(folder, columns, **options):
    table = {"path": write_pictures(folder, 3), "label": [0, 1, 0]} | columns
    pq.write_table(pa.table(table), folder / "t.parquet")
    return dp.Manifest.open(folder / "t.parquet", progress=False, **options)


def doubted(manifest):
    return [each for each in manifest.omissions if each.unit == "doubt"]


@pytest.mark.parametrize(
    ("columns", "names", "advice"),
    [
        ({"bbox": pa.array([BOX] * 3, FIXED)}, ["bbox"], "Targets(boxes='bbox', box_labels="),
        ({"boxes": [BOX] * 3}, ["boxes"], "Targets(boxes='boxes'"),
        ({"bounding_boxes": [BOX * 2, [], BOX]}, ["bounding_boxes"], "boxes='bounding_boxes'"),
        ({"GT_Boxes": [[BOX], [], [BOX] * 2]}, ["GT_Boxes"], "boxes='GT_Boxes'"),
        ({"bounding_box": [[1, 2, 3, 4]] * 3}, ["bounding_box"], "boxes='bounding_box'"),
        ({"bbox": ["[834.0, 222.0, 56.0, 36.0]"] * 3}, ["bbox"], "lists of all its boxes"),
        ({"xywh": ["", "1 2 3 4", " "]}, ["xywh"], "lists of all its boxes"),
        ({"xyxy": ["(1 2 3 4)", None, "5, -6, .7, 8."]}, ["xyxy"], "lists of all its boxes"),
        ({"box": ["[[1, 2, 3, 4], [5, 6, 7, 8]]"] * 3}, ["box"], "lists of all its boxes"),
        ({name: [n] * 3 for name, n in SIDES.items()}, list(SIDES), "box_format='xyxy'"),
        ({name.title(): [n + 0.5] * 3 for name, n in SIDES.items()}, None, "box_format='xyxy'"),
        ({f"bbox_{name}": [1] * 3 for name in ("x1", "y1", "x2", "y2")}, None, "'xyxy'"),
        ({name: [1] * 3 for name in ("left", "top", "right", "bottom")}, None, "'xyxy'"),
        ({name: [1] * 3 for name in ("x", "y", "w", "h")}, None, "box_format='xywh'"),
        ({name: [1] * 3 for name in ("x_1", "y_1", "width", "height")}, None, "'xywh'"),
        ({"bbox": [{"x": 1, "y": 2, "w": 3, "h": 4}] * 3}, ["bbox"], "box_format='xywh'"),
        ({"landmarks": pa.array([BOX] * 3, FIXED)}, ["landmarks"], "keypoints='landmarks'"),
        ({"KeyPoints": [[[1, 2], [3, 4]]] * 3}, ["KeyPoints"], "keypoints='KeyPoints'"),
        ({"keypoints": ["[1, 2, 3, 4]"] * 3}, ["keypoints"], "keypoints='keypoints'"),
        # clean ones
        ({"boxes": [1, 2, 3]}, [], ""),
        ({"box": ["A 3", "B 1", "[1, 2]"]}, [], ""),
        ({"box": pa.array([[1, 2, 3]] * 3, pa.list_(pa.int64(), 3))}, [], ""),
        ({"box": ["", "", ""]}, [], ""),
        ({"embedding": pa.array([BOX] * 3, FIXED)}, [], ""),
        ({"x": [1] * 3, "y": [1] * 3, "width": [1] * 3}, [], ""),
        ({"left": list("abc"), "top": [1] * 3, "right": [1] * 3, "bottom": [1] * 3}, [], ""),
        ({"keypoints": [17, 17, 0]}, [], ""),
    ],
)
def test_boxes_and_points_that_are_not_read(columns, names, advice, tmp_path):
    names = list(columns) if names is None else names
    found = doubted(opened(tmp_path, columns, strict=not names))
    assert [each.names for each in found] == [names[:3]] * bool(names)
    assert all(advice in each.kind and "which are not read" in each.kind for each in found)
    if names:
        with pytest.raises(dp.OmissionError, match="which are not read"):
            opened(tmp_path, columns, strict=True)


def test_a_table_of_a_row_for_each_box(tmp_path):
    write_pictures(tmp_path, 2)
    rows = ["path,label,xmin,ymin,xmax,ymax", "0.png,cat,0,0,1,2", "1.png,dog,0,0,1,2"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    (found,) = doubted(dp.Manifest.open(tmp_path / "t.csv", progress=False))
    assert found.kind.startswith("columns of boxes, which are not read")


def test_columns_beside_boxes_that_are_read_are_no_doubt(tmp_path):
    columns = {"b": [[0, 0, 1, 2]] * 3, "l": [[0]] * 3, "bbox": [BOX] * 3}
    targets = dp.Targets(boxes="b", box_labels="l")
    manifest = opened(tmp_path, columns, targets=targets, strict=True)
    assert manifest.take_objects(np.arange(3)).counts.tolist() == [1, 1, 1]


def test_a_box_that_is_predicted_is_read(tmp_path):
    columns = {"box": pa.array([BOX] * 3, FIXED)}
    assert doubted(opened(tmp_path, columns, label_column="box", strict=True)) == []
