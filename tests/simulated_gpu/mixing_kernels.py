"""The kernels of dali_pipes/loader/mixing.cu as C++ for the CPU: what CUDA provides, and
launches.
"""

from pathlib import Path

# What CuPy adds to our options: cupy/cuda/compiler.py.
CUPY_OPTIONS = ("-ftz=true",)
KERNELS = Path(__file__).parents[2] / "dali_pipes" / "loader" / "mixing.cu"
HALF = """
using __half = _Float16;
static inline float __half2float(__half value) { return value; }
static inline __half __float2half_rn(float value) { return static_cast<__half>(value); }
"""
BFLOAT = """
#include <cstdint>
#include <cstring>
struct __nv_bfloat16 { uint16_t bits; };
static inline float __bfloat162float(__nv_bfloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}
static inline __nv_bfloat16 __float2bfloat16_rn(float value) {  // finite ones only
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
"""
# CuPy compiles for denormal numbers of float32 that count as 0, in what is read and what is made
# (CUPY_OPTIONS).
FLUSHES = """
#if defined(__x86_64__)
#include <xmmintrin.h>
struct Flushing {
    const unsigned before = _mm_getcsr();
    Flushing() { _mm_setcsr(before | 0x8040); }
    ~Flushing() { _mm_setcsr(before); }
};
#else
struct Flushing {};
#endif
"""
# what CUDA provides, one thread after the other; `run` is a launch
HOST = f"""
#include <cmath>
{FLUSHES}"""
HOST += """
#define __device__
#define __global__
struct Place { int x, y; };
static thread_local Place blockIdx, blockDim, threadIdx;
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
#include "mixing.cu"
template <typename... A>
static void run(void (*kernel)(A...), int columns, int rows, int threads, A... arguments) {
    const Flushing flushing;
    blockDim = {threads, 1};
    for (int y = 0; y < rows; ++y)
        for (int x = 0; x < columns; ++x)
            for (int thread = 0; thread < threads; ++thread) {
                blockIdx = {x, y};
                threadIdx = {thread, 0};
                kernel(arguments...);
            }
}
"""
MISALIGNED = 716  # cudaErrorMisalignedAddress
# A launch of CuPy's: the function has a mangled name, and its arguments are copied when it is
# launched.
LAUNCHES = """
#include <cxxabi.h>
#include <dlfcn.h>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

template <typename... A, size_t... I>
static std::function<void()> prepared(void (*kernel)(A...), int x, int y, int threads,
                                      void **arguments, std::index_sequence<I...>) {
    std::tuple<A...> values{*static_cast<A *>(arguments[I])...};
    return [=] { run(kernel, x, y, threads, std::get<I>(values)...); };
}
template <typename... A>
static std::function<void()> prepared(void (*kernel)(A...), int x, int y, int threads,
                                      void **arguments) {
    return prepared(kernel, x, y, threads, arguments, std::index_sequence_for<A...>{});
}

static std::function<void()> find(const std::string &name, int x, int y, int threads,
                                  void **arguments) {
INSTANCES
    return nullptr;
}

// What -fsanitize=alignment calls: a device gives up at an address that is not a multiple of what
// is read or written there at once.
static thread_local jmp_buf end_of_kernel;
extern "C" void __ubsan_handle_type_mismatch_v1(void *, void *address) {
    static auto library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    static auto fault = reinterpret_cast<void (*)(int)>(dlsym(library, "device_fault"));
    std::fprintf(stderr, "simulated GPU: a kernel of mixing.cu used %p, which is not aligned\\n",
                 address);
    fault(MISALIGNED);
    longjmp(end_of_kernel, 1);
}

extern "C" void *simulated_kernel(const char *mangled, int x, int y, int threads,
                                  void **arguments) {
    char *name = abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr);
    if (!name) return nullptr;
    auto launch = find(name, x, y, threads, arguments);
    std::free(name);
    return launch ? new std::function<void()>(launch) : nullptr;
}
extern "C" void simulated_kernel_run(void *launch) {
    const Flushing flushing;  // a kernel that gave up has not restored what it found
    if (!setjmp(end_of_kernel)) (*static_cast<std::function<void()> *>(launch))();
    delete static_cast<std::function<void()> *>(launch);
}
"""
BYTES = {"float": 4, "__half": 2, "__nv_bfloat16": 2, "unsigned char": 1}


def write(folder: Path) -> Path:
    """The source of all instances, in this folder with the headers that it includes."""
    instances = [
        f"{kernel}<{name}, {at_once}>"
        for kernel in ("mixup", "cutmix")
        for name, size in BYTES.items()
        for at_once in (1, 16 // size)
    ]
    finds = [
        (
            f'    if (name.find("{each}(") != std::string::npos) return prepared({each}, x, y, '
            "threads, arguments);"
        )
        for each in instances
    ]
    (folder / "cuda_fp16.h").write_text(
        HALF.replace("using __half = _Float16;", HALF_OF_ITS_OWN_NAME)
    )
    (folder / "cuda_bf16.h").write_text(BFLOAT)
    launches = LAUNCHES.replace("INSTANCES", "\n".join(finds)).replace(
        "MISALIGNED", str(MISALIGNED)
    )
    source = folder / "mixing.cpp"
    source.write_text(HOST + launches)
    return source


# An alias would lose its name, by which a launch finds its instance.
HALF_OF_ITS_OWN_NAME = """struct __half {
    _Float16 value;
    __half() = default;
    __half(_Float16 each) : value(each) {}
    operator float() const { return value; }
};"""
