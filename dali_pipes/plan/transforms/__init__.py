"""Transforms: what is made of the images. Each has a row in the table `TRANSFORMS`.

`base.py` says what a transform is. `TrainTransform` and `EvalTransform` are the usual ones. Those
of torchvision's detection references are `ShortestSizeTransform`, `LetterboxTransform`,
`IoUCropTransform` and `ScaleJitterTransform`; with flip=0 and no `augment` the first two serve
evaluation. `ViewsTransform` makes several views of each image,
`TenCropTransform` its corners and its center.
"""

from dali_pipes.plan.transforms.base import DTYPES as DTYPES
from dali_pipes.plan.transforms.base import INTERPOLATIONS as INTERPOLATIONS
from dali_pipes.plan.transforms.base import Transform as Transform
from dali_pipes.plan.transforms.base import views_of as views_of
from dali_pipes.plan.transforms.classification import CenterCropTransform as CenterCropTransform
from dali_pipes.plan.transforms.classification import EvalTransform as EvalTransform
from dali_pipes.plan.transforms.classification import RandomCropTransform as RandomCropTransform
from dali_pipes.plan.transforms.classification import TrainTransform as TrainTransform
from dali_pipes.plan.transforms.detection import IoUCropTransform as IoUCropTransform
from dali_pipes.plan.transforms.detection import LetterboxTransform as LetterboxTransform
from dali_pipes.plan.transforms.detection import ScaleJitterTransform as ScaleJitterTransform
from dali_pipes.plan.transforms.detection import ShortestSizeTransform as ShortestSizeTransform
from dali_pipes.plan.transforms.views import CornerCrop as CornerCrop
from dali_pipes.plan.transforms.views import TenCropTransform as TenCropTransform
from dali_pipes.plan.transforms.views import ViewsTransform as ViewsTransform

# A row is a transform by its name: files in conf/transform extend the schema NAME_schema.
TRANSFORMS: dict[str, type[Transform]] = {
    "train": TrainTransform,
    "eval": EvalTransform,
    "center_crop": CenterCropTransform,
    "random_crop": RandomCropTransform,
    "shortest_size": ShortestSizeTransform,
    "letterbox": LetterboxTransform,
    "iou_crop": IoUCropTransform,
    "scale_jitter": ScaleJitterTransform,
    "views": ViewsTransform,
    "ten_crop": TenCropTransform,
}
