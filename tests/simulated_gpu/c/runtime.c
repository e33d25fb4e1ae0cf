/* The CUDA runtime: sim_NAME stands in for NAME, wherever a library has it, linked statically or not (patching.py). */
#define _GNU_SOURCE
#include "core.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DRIVER_VERSION
#define DRIVER_VERSION CUDART_VERSION
#endif
#define SIMULATED(name) cudaError_t sim_##name

static __thread cudaError_t last_error;

static cudaError_t failed(cudaError_t error) { return last_error = error; }

/* What every call asks first. */
static cudaError_t usable(void) {
  if (failure("driver", DRIVER_VERSION) / 1000 < CUDART_VERSION / 1000) return failed(cudaErrorInsufficientDriver);
  if (device_faulted()) return failed((cudaError_t)device_faulted());
  return device_count() ? cudaSuccess : failed(cudaErrorNoDevice);
}

/* What every wait returns: the device may have come upon a fault by then. */
static cudaError_t waited(void) { return device_faulted() ? failed((cudaError_t)device_faulted()) : cudaSuccess; }

/* ---- Errors and versions ---- */

SIMULATED(cudaGetLastError)(void) {
  cudaError_t error = device_faulted() ? (cudaError_t)device_faulted() : last_error;
  last_error = cudaSuccess;
  return error;
}
SIMULATED(cudaPeekAtLastError)(void) { return device_faulted() ? (cudaError_t)device_faulted() : last_error; }

static const struct { cudaError_t error; const char *name, *text; } texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
};

const char *sim_cudaGetErrorName(cudaError_t error) {
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].error == error) return texts[i].name;
  return "unrecognized error code";
}
const char *sim_cudaGetErrorString(cudaError_t error) {
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (texts[i].error == error) return texts[i].text;
  return "unrecognized error code";
}
SIMULATED(cudaDriverGetVersion)(int *version) {
  *version = (int)failure("driver", DRIVER_VERSION);
  return cudaSuccess;
}
SIMULATED(cudaRuntimeGetVersion)(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t simulated_unsupported(const char *name) {
  say_unsupported(name);
  return failed(cudaErrorNotSupported);
}

/* ---- Devices: as far as it matters, those of an H100 ---- */

SIMULATED(cudaGetDeviceCount)(int *count) {
  *count = 0;
  cudaError_t error = usable();
  if (!error) *count = device_count();
  return error;
}
SIMULATED(cudaGetDevice)(int *device) {
  *device = device_current();
  return usable();
}
SIMULATED(cudaSetDevice)(int device) {
  cudaError_t error = usable();
  if (error) return error;
  return device_set(device) ? failed(cudaErrorInvalidDevice) : cudaSuccess;
}
SIMULATED(cudaInitDevice)(int device, unsigned device_flags, unsigned flags) { return sim_cudaSetDevice(device); }
SIMULATED(cudaSetDeviceFlags)(unsigned flags) { return cudaSuccess; }
SIMULATED(cudaGetDeviceFlags)(unsigned *flags) { return *flags = 0, cudaSuccess; }
SIMULATED(cudaDeviceReset)(void) { return cudaSuccess; }

int simulated_attribute(int attribute, int device) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: return 1024;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrTextureAlignment: return 512;
    case cudaDevAttrTexturePitchAlignment: return 32;
    case cudaDevAttrMultiProcessorCount: return 132;
    case cudaDevAttrConcurrentKernels: case cudaDevAttrUnifiedAddressing: case cudaDevAttrManagedMemory: return 1;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrL2CacheSize: return 52428800;
    case cudaDevAttrComputeCapabilityMajor: return device_architecture() / 10;
    case cudaDevAttrComputeCapabilityMinor: return device_architecture() % 10;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 232448;
    case cudaDevAttrPciBusId: return device_physical(device) + 1;
    case cudaDevAttrCanMapHostMemory: case cudaDevAttrCooperativeLaunch: case cudaDevAttrStreamPrioritiesSupported: return 1;
    case cudaDevAttrAsyncEngineCount: return 3;
    default: return 0; /* memory pools, virtual memory management, graphs of memory: not simulated, so not offered */
  }
}

SIMULATED(cudaDeviceGetAttribute)(int *value, enum cudaDeviceAttr attribute, int device) {
  *value = simulated_attribute((int)attribute, device);
  return usable();
}

SIMULATED(cudaGetDeviceProperties_v2)(struct cudaDeviceProp *properties, int device) {
  cudaError_t error = usable();
  if (error) return error;
  if (device < 0 || device >= device_count()) return failed(cudaErrorInvalidDevice);

  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, device_name);
  device_uuid(device_physical(device), (unsigned char *)&properties->uuid);
  properties->totalGlobalMem = device_total();
  properties->sharedMemPerBlock = 49152;
  properties->sharedMemPerBlockOptin = 232448;
  properties->sharedMemPerMultiprocessor = 233472;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024, properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647, properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = device_architecture() / 10, properties->minor = device_architecture() % 10;
  properties->multiProcessorCount = 132;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->l2CacheSize = 52428800;
  properties->textureAlignment = 512;
  properties->unifiedAddressing = properties->canMapHostMemory = properties->concurrentKernels = 1;
  properties->pciBusID = device_physical(device) + 1;
  return cudaSuccess;
}
SIMULATED(cudaGetDeviceProperties)(struct cudaDeviceProp *properties, int device) {
  return sim_cudaGetDeviceProperties_v2(properties, device);
}
SIMULATED(cudaDeviceGetPCIBusId)(char *text, int length, int device) {
  snprintf(text, (size_t)length, "0000:%02X:00.0", device_physical(device) + 1);
  return cudaSuccess;
}
SIMULATED(cudaDeviceGetByPCIBusId)(int *device, const char *text) {
  unsigned bus = 0;
  sscanf(text, "%*x:%x", &bus);
  for (*device = 0; *device < device_count(); ++*device)
    if (device_physical(*device) + 1 == (int)bus) return cudaSuccess;
  return failed(cudaErrorInvalidDevice);
}
SIMULATED(cudaDeviceCanAccessPeer)(int *can, int device, int peer) { return *can = 0, cudaSuccess; }
SIMULATED(cudaDeviceEnablePeerAccess)(int peer, unsigned flags) { return failed(cudaErrorNotSupported); }
SIMULATED(cudaDeviceGetStreamPriorityRange)(int *least, int *greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
SIMULATED(cudaDeviceGetLimit)(size_t *value, enum cudaLimit limit) { return *value = 1 << 20, cudaSuccess; }
SIMULATED(cudaDeviceSetLimit)(enum cudaLimit limit, size_t value) { return cudaSuccess; }
SIMULATED(cudaDeviceSetCacheConfig)(enum cudaFuncCache config) { return cudaSuccess; }
SIMULATED(cudaDeviceSynchronize)(void) {
  cudaError_t error = usable();
  simulated_waited++;
  if (error) return error;
  device_wait();
  return waited();
}
SIMULATED(cudaProfilerStart)(void) { return cudaSuccess; }
SIMULATED(cudaProfilerStop)(void) { return cudaSuccess; }

/* ---- Memory ---- */

static cudaError_t allocate(void **pointer, size_t size, enum memory kind) {
  cudaError_t error = usable();
  if (error) return error;
  *pointer = NULL;
  if (!size) return cudaSuccess;
  *pointer = memory_allocate(kind, device_current(), size);
  return *pointer ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

/* Giving memory back waits for all that was queued on its device, as cudaFree does. */
static cudaError_t give_back(void *pointer) {
  if (!pointer) return cudaSuccess;
  int device = device_current(), before = device;
  if (memory_kind(pointer, &device, NULL, NULL) == PAGEABLE) return failed(cudaErrorInvalidValue);
  device_set(device);
  device_wait();
  device_set(before);
  return memory_free(pointer) ? failed(cudaErrorInvalidValue) : cudaSuccess;
}

SIMULATED(cudaMalloc)(void **pointer, size_t size) { return allocate(pointer, size, DEVICE); }
SIMULATED(cudaMallocAsync)(void **pointer, size_t size, cudaStream_t stream) { return allocate(pointer, size, DEVICE); }
SIMULATED(cudaMallocManaged)(void **pointer, size_t size, unsigned flags) { return allocate(pointer, size, MANAGED); }
SIMULATED(cudaMallocHost)(void **pointer, size_t size) { return allocate(pointer, size, PINNED); }
SIMULATED(cudaHostAlloc)(void **pointer, size_t size, unsigned flags) { return allocate(pointer, size, PINNED); }
SIMULATED(cudaMallocPitch)(void **pointer, size_t *pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return allocate(pointer, *pitch * height, DEVICE);
}
SIMULATED(cudaFree)(void *pointer) { return give_back(pointer); }
SIMULATED(cudaFreeHost)(void *pointer) { return give_back(pointer); }
SIMULATED(cudaFreeAsync)(void *pointer, cudaStream_t stream) {
  if (pointer) queue_free(stream_named(stream), pointer);
  return cudaSuccess;
}
SIMULATED(cudaHostRegister)(void *pointer, size_t size, unsigned flags) {
  return memory_register(pointer, size) ? failed(cudaErrorHostMemoryAlreadyRegistered) : cudaSuccess;
}
SIMULATED(cudaHostUnregister)(void *pointer) {
  return memory_unregister(pointer) ? failed(cudaErrorHostMemoryNotRegistered) : cudaSuccess;
}
SIMULATED(cudaHostGetDevicePointer)(void **device, void *host, unsigned flags) { return *device = host, cudaSuccess; }
SIMULATED(cudaHostGetFlags)(unsigned *flags, void *pointer) { return *flags = 0, cudaSuccess; }
SIMULATED(cudaMemGetInfo)(size_t *unused, size_t *total) {
  *total = device_total();
  *unused = *total - device_used(device_current());
  return usable();
}
SIMULATED(cudaPointerGetAttributes)(struct cudaPointerAttributes *attributes, const void *pointer) {
  static const enum cudaMemoryType types[] = {cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged};
  memset(attributes, 0, sizeof *attributes);
  enum memory kind = memory_kind(pointer, &attributes->device, NULL, NULL);
  attributes->type = types[kind];
  if (kind == PAGEABLE) attributes->device = -1;
  else attributes->devicePointer = (void *)pointer;
  if (kind != DEVICE) attributes->hostPointer = (void *)pointer;
  return cudaSuccess;
}

/* A copy that returns when it is done; between two places of the device it does not, in CUDA, but everything else waits for it. */
SIMULATED(cudaMemcpy)(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  queue_copy(stream_named(NULL), to, from, size);
  stream_wait(stream_named(NULL));
  return waited();
}
SIMULATED(cudaMemcpyAsync)(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  if (size && (!to || !from)) return failed(cudaErrorInvalidValue);
  queue_copy(stream_named(stream), to, from, size);
  return cudaSuccess;
}
SIMULATED(cudaMemcpyPeerAsync)(void *to, int to_device, const void *from, int from_device, size_t size, cudaStream_t stream) {
  queue_copy(stream_named(stream), to, from, size);
  return cudaSuccess;
}
SIMULATED(cudaMemcpyPeer)(void *to, int to_device, const void *from, int from_device, size_t size) {
  return sim_cudaMemcpy(to, from, size, cudaMemcpyDefault);
}
SIMULATED(cudaMemcpy2DAsync)
(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  queue_copy_2d(stream_named(stream), to, to_pitch, from, from_pitch, width, height);
  return cudaSuccess;
}
SIMULATED(cudaMemcpy2D)
(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind) {
  queue_copy_2d(stream_named(NULL), to, to_pitch, from, from_pitch, width, height);
  stream_wait(stream_named(NULL));
  return cudaSuccess;
}
SIMULATED(cudaMemsetAsync)(void *to, int value, size_t size, cudaStream_t stream) {
  queue_set(stream_named(stream), to, value, size);
  return cudaSuccess;
}
SIMULATED(cudaMemset)(void *to, int value, size_t size) { return sim_cudaMemsetAsync(to, value, size, NULL); }
SIMULATED(cudaMemset2DAsync)(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++) queue_set(stream_named(stream), (char *)to + row * pitch, value, width);
  return cudaSuccess;
}

/* Variables of kernels: only kernels read them. Each has memory of its own, so that its address is one. */
SIMULATED(cudaGetSymbolAddress)(void **pointer, const void *symbol) {
  static void *memory;
  if (!memory) memory = memory_allocate(DEVICE, device_current(), 1 << 20);
  return *pointer = memory, cudaSuccess;
}
SIMULATED(cudaMemcpyToSymbol)(const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind) { return cudaSuccess; }
SIMULATED(cudaMemcpyToSymbolAsync)
(const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind, cudaStream_t stream) { return cudaSuccess; }

/* Pools of the device: allocations come one by one, so a pool holds nothing. */
SIMULATED(cudaDeviceGetDefaultMemPool)(cudaMemPool_t *pool, int device) { return *pool = (cudaMemPool_t)(uintptr_t)(device + 1), cudaSuccess; }
SIMULATED(cudaDeviceGetMemPool)(cudaMemPool_t *pool, int device) { return sim_cudaDeviceGetDefaultMemPool(pool, device); }
SIMULATED(cudaMemPoolSetAttribute)(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { return cudaSuccess; }
SIMULATED(cudaMemPoolGetAttribute)(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { return *(uint64_t *)value = 0, cudaSuccess; }
SIMULATED(cudaMemPoolTrimTo)(cudaMemPool_t pool, size_t size) { return cudaSuccess; }

/* ---- Streams and events ---- */

SIMULATED(cudaStreamCreateWithPriority)(cudaStream_t *stream, unsigned flags, int priority) {
  cudaError_t error = usable();
  if (!error) *stream = (cudaStream_t)stream_create(!(flags & cudaStreamNonBlocking), priority);
  return error;
}
SIMULATED(cudaStreamCreateWithFlags)(cudaStream_t *stream, unsigned flags) { return sim_cudaStreamCreateWithPriority(stream, flags, 0); }
SIMULATED(cudaStreamCreate)(cudaStream_t *stream) { return sim_cudaStreamCreateWithPriority(stream, 0, 0); }
SIMULATED(cudaStreamDestroy)(cudaStream_t stream) {
  stream_destroy(stream_named(stream));
  return cudaSuccess;
}
SIMULATED(cudaStreamGetPriority)(cudaStream_t stream, int *priority) { return *priority = stream_priority(stream_named(stream)), cudaSuccess; }
SIMULATED(cudaStreamGetFlags)(cudaStream_t stream, unsigned *flags) { return *flags = stream ? cudaStreamNonBlocking : 0, cudaSuccess; }
SIMULATED(cudaStreamGetDevice)(cudaStream_t stream, int *device) { return *device = stream_device(stream_named(stream)), cudaSuccess; }
SIMULATED(cudaStreamGetId)(cudaStream_t stream, unsigned long long *id) { return *id = (unsigned long long)(uintptr_t)stream, cudaSuccess; }
SIMULATED(cudaStreamSynchronize)(cudaStream_t stream) {
  simulated_waited++;
  stream_wait(stream_named(stream));
  return waited();
}
SIMULATED(cudaStreamQuery)(cudaStream_t stream) { return stream_done(stream_named(stream)) ? waited() : cudaErrorNotReady; }
SIMULATED(cudaStreamIsCapturing)(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
/* Of what else it is asked for, which differs between its versions, there is nothing where no graph is captured. */
SIMULATED(cudaStreamGetCaptureInfo)(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id) {
  if (status) *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  return cudaSuccess;
}
SIMULATED(cudaStreamGetCaptureInfo_v2)(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id) {
  return sim_cudaStreamGetCaptureInfo(stream, status, id);
}
SIMULATED(cudaStreamGetCaptureInfo_v3)(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id) {
  return sim_cudaStreamGetCaptureInfo(stream, status, id);
}
SIMULATED(cudaThreadExchangeStreamCaptureMode)(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }
SIMULATED(cudaLaunchHostFunc)(cudaStream_t stream, cudaHostFn_t function, void *argument) {
  queue_call(stream_named(stream), function, argument, 1);
  return cudaSuccess;
}

typedef struct {
  cudaStream_t stream;
  cudaStreamCallback_t function;
  void *argument;
} Callback;

static void call_back(void *argument) {
  Callback callback = *(Callback *)argument;
  free(argument);
  callback.function(callback.stream, cudaSuccess, callback.argument);
}
SIMULATED(cudaStreamAddCallback)(cudaStream_t stream, cudaStreamCallback_t function, void *argument, unsigned flags) {
  Callback *callback = malloc(sizeof *callback);
  *callback = (Callback){stream, function, argument};
  queue_call(stream_named(stream), call_back, callback, 1);
  return cudaSuccess;
}

SIMULATED(cudaEventCreateWithFlags)(cudaEvent_t *event, unsigned flags) {
  Event *made = calloc(1, sizeof *made);
  made->timed = !(flags & cudaEventDisableTiming);
  *event = (cudaEvent_t)made;
  return usable();
}
SIMULATED(cudaEventCreate)(cudaEvent_t *event) { return sim_cudaEventCreateWithFlags(event, 0); }
SIMULATED(cudaEventDestroy)(cudaEvent_t event) {
  Event *each = (Event *)event;
  if (event_done(each)) free(each->time); /* else a task has still to write it */
  free(each);
  return cudaSuccess;
}
SIMULATED(cudaEventRecordWithFlags)(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  event_record((Event *)event, stream_named(stream));
  return cudaSuccess;
}
SIMULATED(cudaEventRecord)(cudaEvent_t event, cudaStream_t stream) { return sim_cudaEventRecordWithFlags(event, stream, 0); }
SIMULATED(cudaStreamWaitEvent)(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  event_wait_on(stream_named(stream), (Event *)event);
  return cudaSuccess;
}
SIMULATED(cudaEventSynchronize)(cudaEvent_t event) {
  event_wait((Event *)event);
  return waited();
}
SIMULATED(cudaEventQuery)(cudaEvent_t event) { return event_done((Event *)event) ? waited() : cudaErrorNotReady; }
SIMULATED(cudaEventElapsedTime)(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  Event *first = (Event *)start, *second = (Event *)end;
  if (!first->time || !second->time) return failed(cudaErrorInvalidResourceHandle);
  if (!event_done(first) || !event_done(second)) return cudaErrorNotReady;
  *milliseconds = (float)(1e3 * (*second->time - *first->time));
  return cudaSuccess;
}
SIMULATED(cudaEventElapsedTime_v2)(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return sim_cudaEventElapsedTime(milliseconds, start, end);
}

/* ---- Launches: checked and counted, not run ---- */

int simulated_launch_fits(dim3 grid, dim3 block, size_t shared) {
  return grid.x && grid.y && grid.z && grid.x <= 2147483647u && grid.y <= 65535 && grid.z <= 65535 && block.x && block.y && block.z &&
         block.x <= 1024 && block.y <= 1024 && block.z <= 64 && (uint64_t)block.x * block.y * block.z <= 1024 && shared <= 232448;
}

/* Kernels that were allowed more than 48 KiB of dynamic shared memory, without which the device refuses to launch them. */
static struct { const void *kernel; size_t shared; } allowed[4096];
static int allowed_count;
static pthread_mutex_t allowing = PTHREAD_MUTEX_INITIALIZER;

static size_t shared_of(const void *kernel) {
  size_t found = 49152;
  pthread_mutex_lock(&allowing);
  for (int i = 0; i < allowed_count; i++)
    if (allowed[i].kernel == kernel) found = allowed[i].shared;
  pthread_mutex_unlock(&allowing);
  return found;
}

/* Libraries that hold a kernel which cannot run on this device; patching.py reads which ones. */
static struct { const char *start, *end; } without_code[256];
static int without_code_count;
void simulated_without_code(const char *start, const char *end) {
  if (without_code_count < 256) without_code[without_code_count].start = start, without_code[without_code_count++].end = end;
}
static int has_code(const void *kernel) {
  for (int i = 0; i < without_code_count; i++)
    if (without_code[i].start <= (const char *)kernel && (const char *)kernel < without_code[i].end) return 0;
  return 1;
}

SIMULATED(cudaFuncSetAttribute)(const void *kernel, enum cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > 232448) return failed(cudaErrorInvalidValue);
  pthread_mutex_lock(&allowing);
  int i = 0;
  while (i < allowed_count && allowed[i].kernel != kernel) i++;
  if (i < 4096) allowed[i].kernel = kernel, allowed[i].shared = (size_t)value, allowed_count = i == allowed_count ? i + 1 : allowed_count;
  pthread_mutex_unlock(&allowing);
  return cudaSuccess;
}

SIMULATED(cudaLaunchKernel)(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  if (!has_code(kernel)) {
    fprintf(stderr, "simulated GPU: a kernel was launched that is not compiled for an architecture of %d\n", device_architecture());
    count_one(REFUSED, 1);
    return failed(cudaErrorNoKernelImageForDevice);
  }
  if (!simulated_launch_fits(grid, block, shared) || (shared > 49152 && shared > shared_of(kernel))) {
    fprintf(stderr, "simulated GPU: a kernel was launched with a grid of %u × %u × %u blocks of %u × %u × %u threads and %zu bytes of shared memory\n",
            grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
    count_one(REFUSED, 1);
    return failed(cudaErrorInvalidConfiguration);
  }
  queue_kernel(stream_named(stream));
  return cudaSuccess;
}
SIMULATED(cudaLaunchKernelExC)(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
  return sim_cudaLaunchKernel(kernel, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream);
}
SIMULATED(cudaLaunchCooperativeKernel)(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return sim_cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

/* What programs compiled for CUDA 13 launch: the kernel of a function, which is known by the function here too. */
SIMULATED(__cudaGetKernel)(cudaKernel_t *kernel, const void *function) { return *kernel = (cudaKernel_t)function, cudaSuccess; }
SIMULATED(cudaGetKernel)(cudaKernel_t *kernel, const void *function) { return sim___cudaGetKernel(kernel, function); }
SIMULATED(__cudaLaunchKernel)(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  return sim_cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

static __thread struct { dim3 grid, block; size_t shared; void *stream; } pushed[16];
static __thread int depth;

unsigned sim___cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  if (depth == 16) return 1;
  pushed[depth].grid = grid, pushed[depth].block = block, pushed[depth].shared = shared, pushed[depth].stream = stream;
  depth++;
  return 0;
}
SIMULATED(__cudaPopCallConfiguration)(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!depth) return failed(cudaErrorInvalidValue);
  depth--;
  *grid = pushed[depth].grid, *block = pushed[depth].block, *shared = pushed[depth].shared, *(void **)stream = pushed[depth].stream;
  return cudaSuccess;
}

SIMULATED(cudaFuncSetCacheConfig)(const void *kernel, enum cudaFuncCache config) { return cudaSuccess; }
SIMULATED(cudaFuncSetSharedMemConfig)(const void *kernel, enum cudaSharedMemConfig config) { return cudaSuccess; }
SIMULATED(cudaFuncGetAttributes)(struct cudaFuncAttributes *attributes, const void *kernel) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024, attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
SIMULATED(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(int *blocks, const void *kernel, int block, size_t shared, unsigned flags) {
  return *blocks = block > 0 ? 2048 / (block < 64 ? 64 : block) : 1, cudaSuccess;
}
SIMULATED(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(int *blocks, const void *kernel, int block, size_t shared) {
  return sim_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, block, shared, 0);
}

/* ---- Functions of the driver, by name ---- */

static void *driver_function(const char *name) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  char longer[128];
  for (int version = 4; version > 1; version--) {
    snprintf(longer, sizeof longer, "%s_v%d", name, version);
    void *found = dlsym(driver, longer);
    if (found) return found;
  }
  return dlsym(driver, name);
}
SIMULATED(cudaGetDriverEntryPoint)(const char *name, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  *function = driver_function(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
SIMULATED(cudaGetDriverEntryPointByVersion)
(const char *name, void **function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
  return sim_cudaGetDriverEntryPoint(name, function, flags, result);
}
