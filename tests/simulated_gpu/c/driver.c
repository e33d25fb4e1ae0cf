/* The CUDA driver, libcuda.so.1, as far as PyTorch, DALI and CuPy call it themselves. All other functions of cuda.h are in
 * the generated unsupported.c. */
#define _GNU_SOURCE
#include "core.h"
#include "cubin.h"
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef cuDeviceGetUuid /* a macro in the headers of CUDA 13, for _v2 */

int simulated_attribute(int attribute, int device);

CUresult simulated_driver_unsupported(const char *name) {
  say_unsupported(name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuInit(unsigned flags) { return device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int *version) { return *version = (int)failure("driver", CUDA_VERSION), CUDA_SUCCESS; }

static const struct { CUresult error; const char *name, *text; } texts[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = "an error of the simulated GPU";
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].error == error) *text = texts[i].text;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
  *text = "CUDA_ERROR_UNKNOWN";
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].error == error) *text = texts[i].name;
  return CUDA_SUCCESS;
}

/* ---- Devices and contexts: a device's context is its number + 1 ---- */

CUresult cuDeviceGetCount(int *count) { return *count = device_count(), CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number) {
  *device = number;
  return number >= 0 && number < device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char *name, int length, CUdevice device) { return snprintf(name, (size_t)length, "%s", device_name), CUDA_SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t *size, CUdevice device) { return *size = device_total(), CUDA_SUCCESS; }
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return device_uuid(device_physical(device), (unsigned char *)uuid), CUDA_SUCCESS; }
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { return device_uuid(device_physical(device), (unsigned char *)uuid), CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  return *value = simulated_attribute((int)attribute, device), CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
  return snprintf(text, (size_t)length, "0000:%02X:00.0", device_physical(device) + 1), CUDA_SUCCESS;
}
static CUcontext context(int device) { return (CUcontext)(uintptr_t)(device + 1); }
CUresult cuDevicePrimaryCtxRetain(CUcontext *found, CUdevice device) { return *found = context(device), CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) { return *flags = 0, *active = 1, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *found) { return *found = context(device_current()), CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext chosen) { return chosen ? device_set((int)(uintptr_t)chosen - 1) : 0, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = device_current(), CUDA_SUCCESS; }
CUresult cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device) { return device_set(device), *made = context(device), CUDA_SUCCESS; }
CUresult cuCtxDestroy_v2(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize(void) { return simulated_waited++, device_wait(), (CUresult)device_faulted(); }

static __thread int outer[16], depth;
CUresult cuCtxPushCurrent_v2(CUcontext chosen) {
  if (depth < 16) outer[depth++] = device_current();
  return cuCtxSetCurrent(chosen);
}
CUresult cuCtxPopCurrent_v2(CUcontext *popped) {
  if (popped) *popped = context(device_current());
  if (depth) device_set(outer[--depth]);
  return CUDA_SUCCESS;
}

/* ---- Memory ---- */

/* DALI asks in this way whether there is virtual memory management. */
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr address, unsigned long long flags) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
  return *total = device_total(), *unused = *total - device_used(device_current()), CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
  *pointer = (CUdeviceptr)memory_allocate(DEVICE, device_current(), size);
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
  device_wait();
  return memory_free((void *)pointer) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  return queue_copy(stream_named(stream), (void *)to, from, size), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  return queue_copy(stream_named(stream), to, (void *)from, size), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return queue_copy(stream_named(stream), (void *)to, (void *)from, size), CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return queue_copy(stream_named(stream), (void *)to, (void *)from, size), CUDA_SUCCESS;
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return cuMemcpyAsync(to, from, size, NULL), stream_wait(stream_named(NULL)), CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) { return cuMemcpy(to, (CUdeviceptr)from, size); }
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) { return cuMemcpy((CUdeviceptr)to, from, size); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return queue_set(stream_named(stream), (void *)to, value, count), CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return queue_set_words(stream_named(stream), (void *)to, value, 4, count), CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr pointer) {
  void *found = NULL;
  size_t length = 0;
  enum memory kind = memory_kind((void *)pointer, NULL, &found, &length);
  if (start) *start = (CUdeviceptr)found;
  if (size) *size = length;
  return kind == PAGEABLE ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  int device = 0;
  void *start = NULL;
  size_t size = 0;
  enum memory kind = memory_kind((void *)pointer, &device, &start, &size);
  if (kind == PAGEABLE) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = context(device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = kind == PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(void **)value = (void *)pointer; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = (unsigned long long)(uintptr_t)start; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(void **)value = start; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = size; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)value = kind == MANAGED; break;
    default: return simulated_driver_unsupported("cuPointerGetAttribute of another kind");
  }
  return CUDA_SUCCESS;
}

/* ---- Streams and events ---- */

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  return *stream = (CUstream)stream_create(!(flags & CU_STREAM_NON_BLOCKING), 0), CUDA_SUCCESS;
}
CUresult cuStreamDestroy_v2(CUstream stream) { return stream_destroy(stream_named(stream)), CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) {
  return simulated_waited++, stream_wait(stream_named(stream)), (CUresult)device_faulted();
}
CUresult cuStreamQuery(CUstream stream) { return stream_done(stream_named(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }
CUresult cuStreamGetCtx(CUstream stream, CUcontext *found) { return *found = context(stream_device(stream_named(stream))), CUDA_SUCCESS; }
CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
  return *id = (unsigned long long)(uintptr_t)stream_named(stream), CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { return *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent *event, unsigned flags) {
  Event *made = calloc(1, sizeof *made);
  made->timed = !(flags & CU_EVENT_DISABLE_TIMING);
  return *event = (CUevent)made, CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
  if (event_done((Event *)event)) free(((Event *)event)->time);
  return free(event), CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) { return event_record((Event *)event, stream_named(stream)), CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return event_wait_on(stream_named(stream), (Event *)event), CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent event) { return event_wait((Event *)event), CUDA_SUCCESS; }
CUresult cuEventQuery(CUevent event) { return event_done((Event *)event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }

/* ---- Modules and launches: of a function its limits are known, and none of its code is run ---- */

enum { SHARED = 49152, SHARED_IF_ALLOWED = 232448, REGISTERS = 65536 };

typedef struct {
  Kernel kernel;
  size_t allowed; /* dynamic shared memory */
} Function;

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  Cubin cubin = cubin_read(image);
  int ours = device_architecture(), its = cubin.architecture;
  if (cubin.known && (its / 10 != ours / 10 || its > ours)) {
    fprintf(stderr, "simulated GPU: a module is compiled for an architecture of %d, and the device has %d\n", its, ours);
    cubin_forget(&cubin);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  Cubin *loaded = malloc(sizeof *loaded);
  *loaded = cubin;
  return *module = (CUmodule)loaded, CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
  return cuModuleLoadData(module, image);
}
CUresult cuModuleUnload(CUmodule module) {
  cubin_forget((Cubin *)module);
  return free(module), CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  Cubin *cubin = (Cubin *)module;
  Kernel kernel = {.threads = 1024, .registers = 32};
  snprintf(kernel.name, sizeof kernel.name, "%s", name);
  int found = !cubin->known;
  for (size_t i = 0; !found && i < cubin->count; i++)
    if ((found = !strcmp(cubin->kernels[i].name, name))) kernel = cubin->kernels[i];
  if (!found) return CUDA_ERROR_NOT_FOUND;

  Function *made = malloc(sizeof *made);
  *made = (Function){kernel, SHARED - (kernel.shared < SHARED ? kernel.shared : SHARED)};
  return *function = (CUfunction)made, CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule module, const char *name) {
  static void *memory;
  if (!memory) memory = memory_allocate(DEVICE, device_current(), 1 << 20);
  if (size) *size = 1 << 16;
  return *pointer = (CUdeviceptr)memory, CUDA_SUCCESS;
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) { return *mode = CU_MODULE_LAZY_LOADING, CUDA_SUCCESS; }
static unsigned threads_at_most(const Kernel *kernel) {
  unsigned each = (kernel->registers + 7) / 8 * 8; /* they are given out by eights */
  unsigned by_registers = each ? REGISTERS / each : 1024;
  return kernel->threads < by_registers ? kernel->threads : by_registers;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  const Function *asked = (const Function *)function;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)threads_at_most(&asked->kernel); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = (int)asked->kernel.registers; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)asked->kernel.shared; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = (int)asked->allowed; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = device_architecture(); break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  Function *asked = (Function *)function;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value < 0 || (size_t)value + asked->kernel.shared > SHARED_IF_ALLOWED) return CUDA_ERROR_INVALID_VALUE;
  return asked->allowed = (size_t)value, CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block, size_t shared) {
  return *blocks = block > 0 ? 2048 / (block < 64 ? 64 : block) : 1, CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared, size_t dynamic, int limit) {
  return *grid = 132, *block = limit > 0 && limit < 1024 ? limit : 1024, CUDA_SUCCESS;
}

/* Our own kernels are compiled for the CPU as well; all others are checked and counted. */
static void (*run_on_the_cpu)(void *);
static void *on_the_cpu(const char *name, int x, int y, int threads, void **arguments) {
  static void *(*find)(const char *, int, int, int, void **);
  static int looked;
  if (!looked) {
    char path[4096];
    snprintf(path, sizeof path, "%s/kernels.so", getenv("SIMULATED_GPU"));
    void *kernels = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (kernels) run_on_the_cpu = dlsym(kernels, "simulated_kernel_run"), find = dlsym(kernels, "simulated_kernel");
    looked = 1;
  }
  return find ? find(name, x, y, threads, arguments) : NULL;
}

/* For tests: the bytes of each parameter of the kernel that this thread launched last; how many there are. */
static __thread Kernel last;
int simulated_parameters(int bytes[16]) { return memcpy(bytes, last.bytes, sizeof last.bytes), last.parameters; }

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared, CUstream stream, void **arguments, void **extra) {
  const Function *launched = (const Function *)function;
  const char *name = launched->kernel.name;
  uint64_t threads = (uint64_t)block_x * block_y * block_z;
  CUresult error = CUDA_SUCCESS;
  if (!grid_x || !grid_y || !grid_z || grid_x > 2147483647u || grid_y > 65535 || grid_z > 65535 || !block_x || !block_y || !block_z ||
      block_x > 1024 || block_y > 1024 || block_z > 64 || threads > 1024 || shared > launched->allowed)
    error = CUDA_ERROR_INVALID_VALUE;
  else if (threads > threads_at_most(&launched->kernel)) error = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  if (error) {
    fprintf(stderr,
            "simulated GPU: %s, which has %u registers a thread and takes at most %u threads and %zu bytes of shared memory, was launched "
            "with a grid of %u × %u × %u blocks of %u × %u × %u threads and %u bytes of shared memory\n",
            name, launched->kernel.registers, threads_at_most(&launched->kernel), launched->allowed, grid_x, grid_y, grid_z, block_x, block_y,
            block_z, shared);
    count_one(REFUSED, 1);
    return error;
  }
  if (device_faulted()) return (CUresult)device_faulted();
  last = launched->kernel;
  count_one(LAUNCHES, 1);
  void *work = on_the_cpu(name, (int)grid_x, (int)grid_y, (int)block_x, arguments);
  if (work) queue_call(stream_named(stream), run_on_the_cpu, work, 0);
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
  char longer[128];
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  snprintf(longer, sizeof longer, "%s_v2", name);
  *function = dlsym(driver, longer);
  if (!*function) *function = dlsym(driver, name);
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
/* What the static runtime asks for: without it, it gives up with "driver too old". Libraries that were not patched end here. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) { return CUDA_ERROR_NOT_SUPPORTED; }
