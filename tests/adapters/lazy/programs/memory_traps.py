"""Memory that several things look into: changes in place, views, aliases, caches."""

import copy
import functools
import pickle
import weakref

import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from torch.utils.data import DataLoader
from torchvision import transforms as T

from programs import pictures
from programs.traps import COUNT, SIZE, Pairs, array, loader_trap, small, tensor, trap

# Tensors


@trap
def tensor_and_alias_from_before(path, other):
    x = tensor(path)
    y, z = x.detach(), x.permute(1, 2, 0)
    x.mul_(0.5)
    x.data.add_(1)
    return x, y, z


@trap
def normalize_in_place_with_alias_and_permuted_view(path, other):
    x, z = tensor(path), tensor(other)
    y, v = x.detach(), z.permute(1, 2, 0)
    T.Normalize([0.5] * 3, [0.2] * 3, inplace=True)(x)
    F.normalize(z, [0.5] * 3, [0.2] * 3, True)
    return x, y, z, v


@trap
def region_is_set_with_views_from_before_and_after(path, other):
    x = tensor(path)
    y = x.permute(1, 2, 0)
    x[:, 2:5, 3:9] = 0
    z = x[None]
    x[:, 7:9, 3:9] = 1
    return x, y, z


@trap
def stack_and_its_elements_change_apart(path, other):
    x = tensor(path)
    s = torch.stack([x, x])
    x.add_(1)
    s[0].zero_()
    first, second = s.unbind()
    second.mul_(3)
    return s, x, first


@trap
def contiguous_and_float_may_be_the_tensor_itself(path, other):
    x = F.pil_to_tensor(small(path))
    y, z = x.contiguous(), x.permute(1, 2, 0).contiguous()
    y.add_(1)
    z.add_(2)
    v = tensor(path)
    w, u = v.contiguous(), v.float()
    w.add_(1)
    u.mul_(2)
    t = v.to(torch.float32, copy=True)
    t.mul_(3)
    return x, y, z, v, t, w is v, u is v, v.to("cpu") is v, v.cpu() is v


@trap
def numpy_of_a_tensor_is_changed(path, other):
    x = tensor(path)
    x.numpy()[:] = 0.25
    return x


@trap
def unsqueeze_and_transpose_in_place(path, other):
    x, y = tensor(path), tensor(path)
    x.unsqueeze_(0)
    y.transpose_(1, 2)
    z = tensor(path)
    z.t_() if z.ndim < 3 else z.swapaxes_(0, 2)
    return x, x.shape, y, z


@trap
def out_of_torch_and_numpy(path, other):
    x, a = tensor(path), array(path)
    y, b = x.detach(), a[5:]
    torch.add(x, 1, out=x)
    np.add(a, 3, out=a)
    s = torch.empty(2, 3, SIZE, SIZE)
    torch.stack([x, tensor(other)], out=s)
    s[0].zero_()
    return x, y, a, b, s


@trap
def buffer_of_the_program_for_all_samples(path, other):
    """Samples share it, so a batch has the last one's pixels three times."""
    np.multiply(array(path), 0.5, out=_buffer)
    _tensor_buffer.copy_(tensor(path))
    return torch.from_numpy(_buffer), _tensor_buffer


_buffer, _tensor_buffer = np.zeros((SIZE, SIZE, 3)), torch.zeros(3, SIZE, SIZE)


@trap
def masks_indices_and_scatter_in_place(path, other):
    x, y = tensor(path), tensor(other)
    view = x.view(3, -1)
    x[x > 0.5] = 0
    x[1] = y[0]
    x.masked_fill_(y < 0.2, 0.7)
    x.index_add_(0, torch.tensor([0, 2]), y[:2])
    return x, view


@trap
def memory_is_given_to_another_tensor(path, other):
    x, y, z = tensor(path), tensor(other), torch.zeros(3, SIZE, SIZE)
    z.set_(x)
    z[:, 0] = 1
    y.data = x
    y[:, 1] = 2
    return x, y, z


@trap
def two_tensors_are_swapped(path, other):
    x, y = tensor(path), tensor(other)
    torch.utils.swap_tensors(x, y)
    x.add_(1)
    return x, y


@trap
def who_shares_memory_with_whom(path, other):
    a, x = array(path), tensor(path)
    b, y = a[5:], x[:, 5:]
    said = np.shares_memory(a, b), np.may_share_memory(a, a.copy()), b.base is a, a.base is None
    said += x.data_ptr() == y.data_ptr(), y._base is x, x._is_view(), x.is_set_to(x.detach())
    return (*said, x._version, y.storage_offset(), a.flags.owndata, b.flags.owndata)


@trap
def version_counts_of_changes(path, other):
    x = tensor(path)
    before = x._version
    x[:, 2:5, 3:9] = 0
    T.Normalize([0.5] * 3, [0.2] * 3, inplace=True)(x)
    return x, x._version - before


# Arrays


@trap
def array_is_changed_after_from_numpy(path, other):
    a = array(path)
    t, u, v = torch.from_numpy(a), torch.as_tensor(a), torch.tensor(a)
    a[0] = 7
    t[1:].add_(1)
    u[2] = 3
    v[3] = 4
    return a, t, u, v


@trap
def slices_and_views_of_an_array(path, other):
    a = array(path)
    b, c, d = a[10:20], a.T, a[..., ::-1]
    b[:] = 0
    a[3] = 200
    d += 5
    return a, b, c.copy(), d.copy()


@trap
def arrays_in_place_by_functions(path, other):
    a, b, c = array(path), array(other), array(path)
    view = a[:, ::2]
    np.copyto(a, b, where=b > 99)
    np.putmask(a, a < 9, 9)
    np.put(a, [1, 2, 3], 0)
    c.sort(axis=0)
    b.partition(5, axis=1)
    a.flat[7] = 77
    np.fill_diagonal(a[..., 0], 3)
    return a, b, c, view


@trap
def array_gets_another_shape_in_place(path, other):
    a = array(path)
    a.shape = (-1, 3)
    return a


@trap
def windows_into_an_array(path, other):
    a = array(path)
    windows = sliding_window_view(a, (8, 8), axis=(0, 1))[::8, ::8]
    strided = as_strided(a, (10, 10, 3), a.strides)
    a[:9] = 1
    return windows.copy(), strided.copy()


@trap
def structured_view_of_an_array(path, other):
    a = array(path)
    record = a.view([("red", "u1"), ("green", "u1"), ("blue", "u1")])
    record["green"][:5] = 0
    return a, record["red"].copy(), np.rec.array(record).blue.copy()


@trap
def from_numpy_of_negative_strides_fails(path, other):
    a = cv2.imread(path)[:40, :40, ::-1]
    try:
        return torch.from_numpy(a), 0
    except ValueError:
        return torch.from_numpy(a.copy()), 1


@trap
def masked_arrays_and_matrices(path, other):
    a = array(path)
    masked = np.ma.masked_where(a > 200, a)
    a[0] = 255
    return masked.filled(0), np.ma.masked_less(a, 9).mean(), np.asmatrix(a[..., 0]).copy()


# Pictures


@trap
def copies_of_tensors_arrays_and_pictures(path, other):
    x, a, p = tensor(path), array(path), small(path)
    y, b, q, z, c, r = *map(copy.copy, (x, a, p)), *map(copy.deepcopy, (x, a, p))
    x.mul_(2), a.fill(9)
    p.paste((1, 2, 3), (0, 0, 9, 9))
    held = copy.deepcopy({"x": x, "again": x, "p": p})
    held["x"].zero_()
    same = held["again"] is held["x"]
    return x, y, z, a, b, c, np.asarray(p), np.asarray(q), np.asarray(r), same, x


@trap
def picture_is_drawn_on_and_its_copies_are_not(path, other):
    p = small(path)
    q, r, s = p.copy(), p.crop((0, 0, 20, 20)), p.resize((SIZE, SIZE))
    ImageDraw.Draw(p).rectangle((3, 3, 12, 12), fill=(255, 0, 0))
    ImageDraw.Draw(r).ellipse((2, 2, 9, 9), outline=(0, 9, 9))
    return [F.to_tensor(each) for each in (p, q, r, s)]


@trap
def picture_is_pasted_on_and_gets_alpha(path, other):
    p = small(path)
    q, before = p, p.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    p.putpixel((1, 1), (1, 2, 3))
    q.paste(small(other).crop((0, 0, 9, 9)), (5, 5))
    p.putalpha(7)
    layer = Image.new("RGBA", p.size, (9, 9, 9, 99))
    p.alpha_composite(layer, (3, 3))
    return np.array(q), p.mode, F.to_tensor(before), np.array(Image.alpha_composite(p, layer))


@trap
def pixels_by_load_are_written(path, other):
    p = small(path)
    pixels = p.load()
    before = p.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    value = pixels[3, 3]
    pixels[3, 3] = (9, 9, 9)
    return F.to_tensor(p), F.to_tensor(before), value


@trap
def thumbnail_of_a_picture_and_its_alias(path, other):
    p = Image.open(path).convert("RGB")
    q = p
    p.thumbnail((40, 40))
    return q.size, F.to_tensor(q.resize((SIZE, SIZE)))


@trap
def enhancer_of_a_picture_that_changes(path, other):
    p = small(path)
    enhancer = ImageEnhance.Contrast(p)
    p.paste((0, 0, 0), (0, 0, 30, 30))
    return F.to_tensor(enhancer.enhance(1.7))


@trap
def pictures_from_arrays(path, other):
    """Of a gray array the picture shares its memory; of colours it is a copy."""
    a, b = np.array(small(path).convert("L")), array(path)
    p, q = Image.fromarray(a), Image.fromarray(b)
    a[:9] = 0
    b[:] = 0
    return np.array(p), F.to_tensor(q)


@trap
def picture_by_its_dictionary(path, other):
    """As some programs copy one into a class of their own."""
    p = Image.open(path)
    q = Image.Image()
    q.__dict__.update(p.convert("RGB").__dict__)
    r = Captioned(small(path), "x")
    return F.to_tensor(q.resize((SIZE, SIZE))), F.to_tensor(r.crop((0, 0, 9, 9))), r.caption


class Captioned(Image.Image):
    def __init__(self, picture, caption):
        super().__init__()
        self.__setstate__(picture.__getstate__())
        self.caption = caption


@trap
def picture_of_the_core_of_another(path, other):
    p = small(path)
    q = p._new(p.im)
    q.paste((0, 0, 0), (0, 0, 9, 9))
    r = Image.new("RGB", (1, 1))
    r.im = small(other).im
    return F.to_tensor(p), F.to_tensor(q), F.to_tensor(r.resize((SIZE, SIZE)))


@trap
def many_steps_on_one_picture(path, other):
    p = small(path)
    for at in range(400):
        p = p.transpose(Image.Transpose(at % 5))
    x = F.to_tensor(p)
    for at in range(200):
        x = x * 1.01 if at % 2 else x / 1.01
    return x


# Arguments


@trap
def arguments_change_after_the_call(path, other):
    mean, box, noise = [0.5] * 3, [1, 2, 41, 42], torch.zeros(3, 4, 4)
    table, factor = [255 - at for at in range(256)] * 3, np.array([1.0, 2.0, 3.0])
    p, q, blur = small(path).crop(box), small(other).point(table), ImageFilter.GaussianBlur(2)
    r = small(other).filter(blur)
    box[0], table[:], blur.radius = 30, [0] * 768, 9
    x = F.normalize(F.to_tensor(p), mean, mean)
    mean[0] = 9.0
    x = F.erase(x, 1, 1, 4, 4, noise)
    x[:, 9:13, 0:4] = noise
    noise.fill_(5)
    a = array(path) * factor
    factor[:] = 0
    return x, F.to_tensor(q), F.to_tensor(r), a


# Caches, and what is kept between samples


@trap(epochs=2)
def cache_of_tensors_changed_in_place(path, other):
    if path not in _cache:
        _cache[path] = tensor(path)
    else:
        _cache[path].mul_(0.5)
    return _cache[path]


_cache, _kept = {}, {}


@trap(epochs=2)
def lru_cache_and_a_change_in_place(path, other):
    p, a = _load(path), _load_array(path)
    p.paste((int(p.getpixel((0, 0))[0]) // 2,) * 3, (0, 0, 5, 5))
    a[:3] //= 2
    return F.to_tensor(p), a


@functools.lru_cache
def _load(path):
    return small(path)


@functools.lru_cache(maxsize=3)
def _load_array(path):
    return array(path)


@trap(epochs=2)
def cache_of_opened_pictures_whose_files_go(path, other):
    if path not in _kept:
        file = pictures.fresh(".png")
        small(path).save(file)
        _kept[path] = pictures.aged(file), Image.open(file)
        _kept[path][1].load()
    else:
        for file, _ in _kept.values():
            file.unlink(missing_ok=True)
    return F.to_tensor(_kept[path][1].convert("RGB").resize((SIZE, SIZE)))


@trap(epochs=2)
def cache_on_a_disk_as_pickles(path, other):
    """As joblib has it."""
    file = pictures.FOLDER / f"{abs(hash(path))}.pickle"
    if not file.exists():
        file.write_bytes(pickle.dumps((tensor(path), array(path), small(path)), protocol=5))
    data = file.read_bytes()
    x, a, p = pickle.loads(data)
    return b"lazy" in data, x, a, F.to_tensor(p)


@loader_trap(epochs=2)
def cache_in_tensors_that_workers_share():
    class Cached(Pairs):
        def __init__(self):
            super().__init__(None)
            self.pixels = torch.zeros(COUNT, 3, SIZE, SIZE).share_memory_()
            self.known = torch.zeros(COUNT).share_memory_()

        def __getitem__(self, at):
            if not self.known[at]:
                self.pixels[at] = tensor(self.files[at])
                self.known[at] = 1
            return self.pixels[at]

    return DataLoader(Cached(), batch_size=2, num_workers=2)


@trap
def view_is_kept_for_the_next_sample(path, other):
    """Which changes it, and with it the sample before."""
    if "view" in _kept:
        _kept["view"].add_(10)
    x = tensor(path)
    _kept["view"] = x[:, :5]
    return x


@trap
def picture_is_kept_for_the_next_sample(path, other):
    before = _kept.get("picture", Image.new("RGB", (SIZE, SIZE)))
    p = small(path)
    _kept["picture"] = p
    mixed = Image.blend(before, p, 0.5)
    before.paste((0, 0, 0), (0, 0, 9, 9))
    return F.to_tensor(mixed), F.to_tensor(p)


@trap(epochs=2)
def weak_references_and_finalizers(path, other):
    p, x, a = small(path), tensor(path), array(path)
    said, ended = [weakref.ref(each)() is each for each in (p, x, a)], []
    for each in (p, x, a):
        weakref.finalize(each, ended.append, 1)
    y = F.to_tensor(p)
    del p, x, a, each
    return y, said, len(ended)


@trap(epochs=2)
def cache_by_identity(path, other):
    """An id is used again once its object is gone."""
    x = tensor(path)
    _kept.setdefault(id(x), x)
    y = _kept[id(x)] * 2
    return y, x is _kept[id(x)]
