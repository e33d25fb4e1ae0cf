// Each image of a batch mixed with the one before it, the first with the last, in one pass over memory: a thread keeps the previous
// image's values while it goes from image to image. Images lie one after the other, `size` values each, in any memory format;
// a thread reads and writes V values at once.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int IMAGES = 8;  // of one thread; of every IMAGES + 1 images read one is read twice

template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
    T at[V];
};

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float widen(unsigned char value) { return value; }

__device__ inline void narrow(float value, float& to) { to = value; }
__device__ inline void narrow(float value, __half& to) { to = __float2half_rn(value); }
__device__ inline void narrow(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }
__device__ inline void narrow(float value, unsigned char& to) { to = static_cast<unsigned char>(rintf(value)); }

// Where in each image this thread's values begin.
template <int V>
__device__ inline int first_value() {
    return V * (blockIdx.x * blockDim.x + threadIdx.x);
}

// `mix(image, previous, out, at)` is called for each of the V values.
template <typename T, int V, typename Mix>
__device__ inline void for_each_pair(const T* __restrict__ images, T* __restrict__ mixed, int count, int size, Mix mix) {
    using Values = Pack<T, V>;
    if (first_value<V>() >= size) return;
    const int start = blockIdx.y * IMAGES;
    const int end = start + IMAGES < count ? start + IMAGES : count;
    const auto place = [=](int image) { return static_cast<long long>(image) * size + first_value<V>(); };
    Values previous = *reinterpret_cast<const Values*>(images + place(start ? start - 1 : count - 1));
    for (int image = start; image < end; ++image) {
        const Values own = *reinterpret_cast<const Values*>(images + place(image));
        Values out;
        for (int at = 0; at < V; ++at) mix(own.at[at], previous.at[at], out.at[at], at);
        *reinterpret_cast<Values*>(mixed + place(image)) = out;
        previous = own;
    }
}

// own × the image + other × the one before it: two products and a sum in float32, each rounded, as PyTorch computes it.
template <typename T, int V>
__global__ void mixup(const T* images, T* mixed, int count, int size, float own, float other) {
    for_each_pair<T, V>(images, mixed, count, size, [=](const T& image, const T& previous, T& out, int) {
        narrow(__fadd_rn(__fmul_rn(widen(previous), other), __fmul_rn(widen(image), own)), out);
    });
}

// The box (left, top, right, bottom; the latter two exclusive) comes from the image before. `step` is the distance of two pixels
// of a row: 1, or the channels in channels_last.
template <typename T, int V>
__global__ void cutmix(
    const T* images, T* mixed, int count, int size, int step, int height, int width, int left, int top, int right, int bottom
) {
    bool inside[V];
    for (int at = 0; at < V; ++at) {
        const int pixel = (first_value<V>() + at) / step, x = pixel % width, y = pixel / width % height;
        inside[at] = left <= x && x < right && top <= y && y < bottom;
    }
    for_each_pair<T, V>(images, mixed, count, size, [&](const T& image, const T& previous, T& out, int at) {
        out = inside[at] ? previous : image;
    });
}
