"""NumPy, PyTorch, torchvision, OpenCV and albumentations: their modes, and their functions."""

import functools
import io
import operator
import random
import warnings

import albumentations as A
import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F
from albumentations.pytorch import ToTensorV2
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.io import encode_jpeg, read_image
from torchvision.transforms import v2
from torchvision.transforms.functional import normalize as normalize_by_name
from torchvision.transforms.functional import to_tensor as to_tensor_by_name

from programs.traps import (
    COUNT,
    SIZE,
    Pairs,
    array,
    loader_trap,
    loop_trap,
    pairs,
    small,
    tensor,
    trap,
)

# Pixels that decide


@trap
def labels_and_branches_by_pixels(path, other):
    p = small(path)
    x, y, a = F.to_tensor(p), F.pil_to_tensor(small(path)), array(path).astype(np.float32)
    if x.mean() > 0.4:
        x = x / 2
    if a.max() > 1:
        a /= 255.0
    label = int(np.asarray(p.convert("L")).mean() > 100)
    said = label, p.getpixel((5, 5)), x.max().item(), len(p.getcolors(9999))
    return x, y / 255 if y.max() > 1 else y, a, *said


# Modes


@loop_trap(lambda: pairs(_blurred, num_workers=1))
def default_dtype_of_the_training_process_is_another(loader):
    for batch in loader:
        yield batch
        torch.set_default_dtype(torch.bfloat16)


def _blurred(path, other):
    return F.gaussian_blur(tensor(path), 5), tensor(path) / 2


@loader_trap
def default_dtype_is_float64():
    torch.set_default_dtype(torch.float64)
    dataset = Pairs(lambda path, other: (tensor(path), array(path) / 255, torch.zeros(2)))
    return DataLoader(dataset, batch_size=3)


@loop_trap(lambda: pairs(_blurred_and_normalized))
def autocast_around_the_training_loop(loader):
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        yield from loader


def _blurred_and_normalized(path, other):
    blur = T.Compose([T.GaussianBlur(5), T.Normalize([0.5] * 3, [0.5] * 3)])
    return blur(tensor(path)), F.to_tensor(small(other))


@trap
def autocast_around_a_blur(path, other):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.to_tensor(F.gaussian_blur(small(path), 5)), F.gaussian_blur(tensor(path), 5)


@trap
def inference_mode_and_no_grad(path, other):
    with torch.inference_mode():
        x = tensor(path) * 2
    with torch.no_grad():
        y = tensor(path) - 1
    return x, y, x.is_inference(), y.is_inference()


@trap
def deterministic_algorithms(path, other):
    torch.use_deterministic_algorithms(True)
    return F.gaussian_blur(tensor(path), 5), tensor(path)


@trap
def gradients(path, other):
    x = tensor(path).requires_grad_()
    y = (x * 2).sum()
    y.backward()
    slope = torch.func.grad(lambda z: (z * z).sum())(tensor(other))
    return x.detach(), x.grad, slope


@trap(collate_fn=list)
def batch_that_requires_a_gradient(path, other):
    x = tensor(path).requires_grad_()
    y = x * 2 - 1
    return y, y.requires_grad, y.is_leaf, y.grad_fn is None


@trap
def errors_of_numpy_that_the_program_asks_for(path, other):
    a, made = array(path).astype(np.float32) + 1, []
    with np.errstate(divide="raise", over="raise"):
        for number in (np.float32(0), 1e30):
            try:
                made.append(a / number if number == 0 else (a * np.float32(number)) * number)
            except FloatingPointError:
                made.append(a * 2)
    return made


@trap
def modes_of_torch_functions(path, other):
    class Named(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(getattr(function, "__name__", "?"))
            return function(*args, **kwargs or {})

    names, x = [], tensor(path)
    with Named():
        y = torch.add(x, 1).flip(-1)
        z = torch.stack([x, y])
    return y, z, names


# Compilers and transforms of functions


@trap
def scripted_and_traced(path, other):
    step = torch.nn.Sequential(T.CenterCrop(20), T.Normalize([0.5] * 3, [0.5] * 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        scripted = torch.jit.script(_scripted)
    return scripted(tensor(path)), step(tensor(other))


def _scripted(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if bool(y.mean() > 0.5):
        y = y.flip([-1])
    return y[:, 2:].clamp(0, 1)


@trap
def compiled_by_dynamo(path, other):
    return torch.compile(_doubled, backend="eager")(tensor(path)), _doubled(tensor(other))


def _doubled(x):
    return x * 2 if x.shape[0] == 3 else x


@trap
def functions_of_functions(path, other):
    x, y = tensor(path), tensor(other)
    mean = torch.vmap(torch.mean)(x), torch.vmap(lambda a, b: a + b)(x, y)
    linear = torch.nn.Linear(SIZE, 2)
    called = torch.func.functional_call(linear, dict(linear.named_parameters()), (x,))
    return *mean, called.shape, torch.utils.checkpoint.checkpoint(_doubled, x, use_reentrant=False)


# Tensors


@trap
def tensors_with_numbers_of_all_kinds(path, other):
    x, y = F.pil_to_tensor(small(path)), tensor(path)
    made = [x / 255, x * 2, x + 250, x * 0.5, x.float() / 127.5 - 1, y * 2 - 1, 1 - y, y.half()]
    made += [y.double(), y.to(torch.uint8), y / 2 + 3, x.sub(3), -y, y**2, x * True, x / True]
    made += [x * np.float32(2), x + np.float64(1), x * np.int64(3), x - np.uint8(3), y * 1j]
    made += [x * torch.tensor(2.0), x / torch.tensor(2), y * torch.tensor(2.0).double()]
    made += [1 / (y + 1), torch.add(y, 3, alpha=2), y.div(0.3, rounding_mode="floor"), y // 0.3]
    made += [y % 0.3, 2 - x, x.type(torch.float16), x.type("torch.DoubleTensor"), y.type_as(x)]
    made += [y.to(x), y * float("nan"), sum([y, y]), functools.reduce(operator.add, [y, y, y])]
    made += [torch.rsub(y, 1), y.mul(y), y - x]
    return made


@trap
def tensors_are_seen_in_other_shapes(path, other):
    x = tensor(path)
    made = [x.flip(-1), x[:, 3:20, 5:9], x[[2, 1, 0]], x.mean(0), x.view(-1), x.mT, x[..., ::2]]
    made += [x.expand(2, 3, -1, -1), x.repeat(2, 1, 1), x.unfold(1, 8, 8), x.chunk(3)[1], x[0]]
    made += [x[None], x[:, None], x[..., None], x.reshape(3, -1), x.movedim(0, -1)]
    made += [x.rot90(1, (1, 2))]
    made += [x.narrow(1, 2, 9), x.roll(3, -1), x.unsqueeze(0).squeeze(0), x[-1:], x[:, -5:, :-5]]
    made += [x.unsqueeze(0).contiguous(memory_format=torch.channels_last), x.split(10, 1)[4]]
    made += [torch.cat([x, x]), torch.cat([x[None], x[None]]), torch.stack([x, x], 1), x.ravel()]
    return made


@trap
def functions_of_torch(path, other):
    x = tensor(path)
    grid = torch.nn.functional.affine_grid(torch.eye(2, 3)[None], [1, 3, 9, 9], align_corners=False)
    made = [torch.nn.functional.interpolate(x[None], (9, 9)), torch.einsum("chw->hwc", x)]
    made += [torch.nn.functional.grid_sample(x[None], grid, align_corners=False), x.tril()]
    made += [x.lerp(x, 0.5), torch.nn.functional.pad(x, [1, 1, 1, 1]), torch.where(x > 0.5, x, 0)]
    made += [x.sort(0).values, x.quantile(0.9), x.topk(3).indices, torch.fft.rfft2(x).abs()]
    made += [x.bincount() if x.ndim < 2 else 0]
    return *made, torch.nn.Conv2d(3, 2, 1)(x[None]).shape, torch.isfinite(x).all().item()


@trap
def memory_by_other_protocols(path, other):
    x, z = tensor(path), F.pil_to_tensor(small(path))
    y = torch.from_dlpack(x)
    y.add_(1)
    shared = tensor(path).share_memory_(), np.from_dlpack(tensor(path))
    found = x, *shared, x.data_ptr() != 0, len(x.untyped_storage())
    return *found, encode_jpeg(z.contiguous())[:500]


@trap
def saved_by_torch(path, other):
    out = io.BytesIO()
    torch.save({"x": tensor(path), "a": array(path), "view": tensor(other)[:, 3:]}, out)
    out.seek(0)
    again = torch.load(out, weights_only=False)
    module = torch.nn.BatchNorm2d(3)
    module.register_buffer("mean_picture", tensor(path))
    return again["x"], again["a"], again["view"], module.state_dict()["mean_picture"].clone()


@trap
def tensors_of_other_layouts(path, other):
    x = tensor(path)
    sparse = (x * (x > 0.8)).to_sparse()
    nested = torch.nested.nested_tensor([x, tensor(other)[:, :9]])
    packed = torch.nn.utils.rnn.pad_sequence([x[0], x[1, :9]])
    found = sparse.to_dense(), [each.clone() for each in nested.unbind()], packed
    return *found, torch.complex(x, x)


# Arrays


@trap
def arrays_with_numbers_of_all_kinds(path, other):
    a, b = array(path), array(other)
    made = [a / 255, a / 127.5 - 1, 1 - a / 255, (a - np.array([1.0, 2, 3])) / [4.0, 5, 6], a * 2]
    made += [a.astype(np.float32) - np.float32(3), a + 250, 255 - a, a - b, a @ np.ones(3), ~a]
    made += [a / np.float32(255), a / np.float64(255), a * np.float16(2), a + np.array(1.0)]
    made += [a * True, a - np.array([1, 2, 3], np.uint8), a.astype(np.float32) * np.float64(2)]
    made += [a // 3, a % 7, a * np.int64(3), a / np.bool_(True), 2 ** (a % 3), divmod(a, 9)[1]]
    made += [a >> 2, a & 15, a.astype(np.float32) / 255, a.astype("float64"), a.astype(int), a * 1j]
    made += [a[..., 0] > 99, a.astype(float).mean(), a.reshape(-1, 3).sum(0), np.clip(a, 9, 99)]
    made += [np.where(a > 9, a, 0)]
    return made


@trap
def arrays_in_lists(path, other):
    a, b = array(path), array(other)
    made = [np.asarray([a, b]), np.stack([a, b]), np.concatenate([a, b]), np.array([[a]])]
    made += [np.dstack([a, b]), np.asarray([small(path)] * 2), np.vstack((a, b)), np.hstack((a, b))]
    made += [np.concatenate([a, b], axis=2), np.sum([a, b], axis=0), np.array((a, b), np.float32)]
    made += [torch.tensor(np.array([a])), torch.stack([tensor(path), torch.zeros(3, SIZE, SIZE)])]
    return *made, torch.cat([tensor(path)[None], tensor(other)[None]])


@trap
def arrays_are_seen_in_other_shapes(path, other):
    a = array(path)
    made = [a[::-1], a[:, ::-1], a[..., ::-1], a[None], a[..., None], a[3], a[:, 5], a[..., 0]]
    made += [a.T, np.rot90(a), np.rot90(a, 3, (1, 0)), np.flip(a), np.flip(a, 1)]
    made += [np.moveaxis(a, -1, 0), np.pad(a, 3), np.pad(a, ((1, 2), (3, 4), (0, 0)), "reflect")]
    made += [np.roll(a, 3, 1), a.ravel(), np.transpose(a, (2, 0, 1)), np.squeeze(a[None])]
    made += [np.repeat(a, 2, 0), np.tile(a, (2, 1, 1)), a.swapaxes(0, 1), a.reshape(-1, 3)]
    made += [np.ascontiguousarray(a[:, ::-1]), np.asfortranarray(a), a[np.ix_([1, 2], [3, 4])]]
    made += [a[a[..., 0] > 99].sum(0), a.take([1, 2], 0), np.split(a, 2)[1]]
    return [each.copy() for each in made]


@trap
def arrays_that_a_program_fills(path, other):
    """Mosaics, letter boxes and canvases."""
    a, b = array(path), array(other)
    canvas, gray = np.full((2 * SIZE, 2 * SIZE, 3), 114, np.uint8), np.zeros((SIZE, SIZE))
    canvas[:SIZE, :SIZE], canvas[SIZE:, 5 : SIZE + 5] = a, b
    gray[:] = a[..., 0]
    gray += b[..., 1]
    a[:9, :9] = b[-9:, -9:]
    b[:, :, 1] = a[:, :, 2]
    return canvas, gray, a, b


# torchvision


@trap
def functions_by_their_names_in_partials_and_tables(path, other):
    load, table = functools.partial(read_image), {"tensor": to_tensor_by_name}
    x = normalize_by_name(table["tensor"](small(path)), [0.5] * 3, [0.5] * 3)
    return x, F.resize(load(path)[:1], [SIZE, SIZE], antialias=True)


@trap
def functional_on_pictures_and_tensors(path, other):
    p, x = small(path), F.pil_to_tensor(small(path))
    corners = [[0, 0], [40, 0], [40, 40], [0, 40]], [[2, 2], [39, 1], [40, 40], [0, 38]]
    both = [F.adjust_hue, F.adjust_brightness, F.adjust_contrast, F.adjust_saturation]
    made = [each(thing, 0.3) for each in [*both, F.adjust_gamma] for thing in (p, x)]
    made += [F.rgb_to_grayscale(p, 3), F.rgb_to_grayscale(x, 3), F.rgb_to_grayscale(p)]
    made += [F.pad(p, [3, 4], padding_mode="reflect"), F.pad(x, 3), F.perspective(p, *corners)]
    made += [F.affine(x, 9, [1, 2], 1.1, [3, 4]), F.rotate(p, 30, expand=True), F.equalize(x)]
    made += [F.autocontrast(p), F.posterize(x, 3), F.solarize(p, 99), F.gaussian_blur(p, 3)]
    made += [F.center_crop(x, [70, 30]), F.center_crop(p, [70, 30]), F.five_crop(x, [9, 9])[4]]
    made += [F.resized_crop(x, 1, 2, 30, 20, [9, 9]), F.adjust_sharpness(x, 3.0), F.invert(p)]
    return [each if isinstance(each, torch.Tensor) else F.to_tensor(each) for each in made]


@trap
def draws_inside_of_kernels(path, other):
    x = tv_tensors.Image(small(path))
    steps = [v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise(), v2.ElasticTransform(9.0)]
    steps += [v2.RandomErasing(1.0, value="random")]
    found = v2.Compose(steps)(x), v2.RandomPhotometricDistort(p=1.0)(x)
    return *found, v2.RandomZoomOut(p=1.0)(x).shape, v2.JPEG((30, 60))(x), v2.AugMix()(x)


@trap
def boxes_masks_and_points_beside_a_picture(path, other):
    p = Image.open(path).convert("RGB")
    size = p.size[::-1]
    boxes = tv_tensors.BoundingBoxes([[3, 3, 60, 60]], format="XYXY", canvas_size=size)
    mask = tv_tensors.Mask(np.array(p.convert("L")) > 99)
    steps = [v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), v2.RandomAffine(9)]
    steps += [v2.Resize((SIZE, SIZE)), v2.ToImage(), v2.SanitizeBoundingBoxes(labels_getter=None)]
    steps += [v2.ToDtype(torch.float32, scale=True)]
    given = {"p": p, "boxes": boxes, "mask": mask, "n": torch.tensor(3)}
    made = v2.Compose(steps)(given)
    found = made["p"], len(made["boxes"]), made["mask"]
    return *found, [type(each).__name__ for each in made.values()]


@trap
def table_of_types_for_dtypes_and_fill(path, other):
    x = tv_tensors.Image(small(path))
    m = tv_tensors.Mask(np.array(small(path).convert("L")))
    dtypes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    turned = v2.RandomRotation((30, 30), fill={tv_tensors.Image: 9, "others": 0})(x, m)
    names = [type(each).__name__ for each in (x + 1, x.clone(), x.float(), x[:1], x.to(torch.half))]
    with tv_tensors.set_return_type("TVTensor"):
        names.append(type(x * 2).__name__)
    return *v2.ToDtype(dtypes, scale=True)(x, m), *turned, v2.ToPureTensor()(x), x + 1, names


# OpenCV and albumentations


@trap
def objects_of_cv2(path, other):
    a, gray = array(path), cv2.imread(path, 0)[:40, :40]
    made = cv2.createCLAHE().apply(gray), cv2.UMat(a).get(), cv2.split(a)[1], cv2.merge([gray] * 3)
    found = cv2.minMaxLoc(gray), cv2.countNonZero(gray), cv2.mean(a), cv2.boundingRect(gray)
    first = *made, str(found), cv2.GaussianBlur(a, (5, 5), 0)
    return *first, cv2.LUT(a, np.arange(256, dtype=np.uint8))


@trap
def cv2_writes_into_arrays(path, other):
    a, b, out = array(path), array(other), np.zeros((20, 20, 3), np.uint8)
    cv2.rectangle(a, (3, 3), (20, 20), (0, 255, 0), 2)
    cv2.putText(a, "x", (5, 30), 0, 1, (9, 9, 9))
    cv2.resize(b, (20, 20), dst=out)
    cv2.randn(b[:9], 0, 9)
    cv2.flip(a, 1, a)
    return a, b, out, cv2.addWeighted(a, 0.5, b, 0.5, 0)


@trap
def kinds_of_cv2_calls(path, other):
    a, turn = array(path), cv2.getRotationMatrix2D((20, 20), 30, 1.0)
    made = [cv2.resize(a, None, fx=0.5, fy=0.5)]
    made += [cv2.resize(a, (20, 30), interpolation=cv2.INTER_AREA)]
    made += [cv2.resize(a[..., 0], (9, 9)), cv2.cvtColor(a, cv2.COLOR_BGR2HSV), cv2.rotate(a, 0)]
    made += [cv2.warpAffine(a, turn, (SIZE, 30), flags=2, borderMode=cv2.BORDER_REFLECT)]
    made += [cv2.copyMakeBorder(a, 1, 2, 3, 4, cv2.BORDER_CONSTANT, value=(9, 8, 7))]
    made += [cv2.transpose(a)]
    made += [cv2.warpPerspective(a, np.eye(3), (9, 9)), cv2.remap(a, *_grid(), cv2.INTER_LINEAR)]
    turn[:] = 0
    return made


def _grid():
    return np.meshgrid(np.arange(9, dtype=np.float32), np.arange(9, dtype=np.float32))


@loader_trap
def albumentations_noise_dropout_and_one_of():
    many = [A.GaussNoise(p=0.5), A.PixelDropout(p=0.5)]
    many += [A.OneOf([A.Blur(p=1), A.CLAHE(p=1)], p=0.5), A.GridDistortion(p=0.5), A.D4(p=0.5)]
    many += [A.HueSaturationValue(p=0.5), A.CoarseDropout(p=0.5), A.RandomBrightnessContrast(p=0.5)]
    many += [A.ImageCompression(p=0.3), A.ShiftScaleRotate(p=0.5)]
    steps = A.Compose([A.RandomCrop(40, 40), *many, A.Normalize(), ToTensorV2()], seed=3)

    def load(path, other):
        return steps(image=cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))["image"]

    return DataLoader(Pairs(load), batch_size=COUNT)


@loader_trap
def albumentations_with_boxes_points_and_a_mask():
    options = {"bbox_params": A.BboxParams("pascal_voc", label_fields=["names"])}
    options |= {"keypoint_params": A.KeypointParams("xy", remove_invisible=False)}
    crop = [A.RandomSizedBBoxSafeCrop(40, 40), A.HorizontalFlip(), A.Affine(rotate=20)]
    steps = A.Compose(crop, seed=3, **options)

    def load(path, other):
        a = array(path)
        mask = (a[..., 0] > 99).astype(np.uint8)
        out = steps(image=a, mask=mask, bboxes=[[3, 3, 30, 30]], names=[1], keypoints=[[9, 9]])
        points = np.array(out["bboxes"], np.float64), np.array(out["keypoints"], np.float64)
        return out["image"], out["mask"], *points

    return DataLoader(Pairs(load), batch_size=1)


@loader_trap
def albumentations_with_steps_of_the_program():
    def darkened(image, **options):
        image = image.copy()
        image[: random.randrange(1, 20)] = 0
        return image if image.mean() > 50 else image + 1

    steps = A.Compose(
        [A.Resize(40, 40), A.Lambda(image=darkened), A.ToFloat(), ToTensorV2()], seed=3
    )
    replayed = A.ReplayCompose([A.HorizontalFlip(p=0.5), A.RandomCrop(20, 20)])
    replayed.set_random_seed(3)

    def load(path, other):
        first = replayed(image=array(path))
        second = A.ReplayCompose.replay(first["replay"], image=array(other))
        return steps(image=cv2.imread(path))["image"], first["image"], second["image"]

    return DataLoader(Pairs(load), batch_size=3)
