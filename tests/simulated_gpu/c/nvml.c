/* NVML, libnvidia-ml.so.1: what PyTorch, DALI's affinity and pynvml ask. It gives no figures of use: nothing is used. */
#define _GNU_SOURCE
#include "core.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

typedef struct { unsigned long long total, free, used; } Memory;

int nvmlInit_v2(void) { return failure("nvml", 0) ? (int)failure("nvml", 0) : SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) {
  switch (error) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Unknown Error";
  }
}
int nvmlSystemGetDriverVersion(char *text, unsigned length) { return snprintf(text, length, "580.00.00"), SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = (int)failure("driver", 13000), SUCCESS; }
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* A handle is a device's number + 1, of all devices: NVML knows nothing of CUDA_VISIBLE_DEVICES. */
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = MOST_DEVICES, SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(uintptr_t)(index + 1);
  return index < MOST_DEVICES ? SUCCESS : INVALID_ARGUMENT;
}
static void write_uuid(int physical, char text[48]) {
  unsigned char uuid[16];
  device_uuid(physical, uuid);
  char *at = text + sprintf(text, "GPU-");
  for (int i = 0; i < 16; i++) at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
  char uuid[48];
  write_uuid((int)(uintptr_t)device - 1, uuid);
  return snprintf(text, length, "%s", uuid), SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *text, void **device) {
  char uuid[48];
  for (unsigned i = 0; i < MOST_DEVICES; i++) {
    write_uuid((int)i, uuid);
    if (!strcmp(text, uuid)) return nvmlDeviceGetHandleByIndex_v2(i, device);
  }
  return NOT_FOUND;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device) {
  unsigned bus = 0;
  sscanf(text, "%*x:%x", &bus);
  return nvmlDeviceGetHandleByIndex_v2(bus - 1, device);
}
int nvmlDeviceGetIndex(void *device, unsigned *index) { return *index = (unsigned)(uintptr_t)device - 1, SUCCESS; }
int nvmlDeviceGetName(void *device, char *text, unsigned length) { return snprintf(text, length, "%s", device_name), SUCCESS; }
int nvmlDeviceGetBrand(void *device, int *brand) { return *brand = 1, SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { return *major = 9, *minor = 0, SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  size_t used = 0;
  for (int i = 0; i < device_count(); i++)
    if (device_physical(i) == (int)(uintptr_t)device - 1) used = device_used(i);
  memory->total = device_total(), memory->used = used, memory->free = memory->total - used;
  return SUCCESS;
}

/* ---- Affinity ---- */

static int affinity(void) { return failure("affinity", 0) ? NOT_SUPPORTED : SUCCESS; }
int nvmlDeviceGetCpuAffinity(void *device, unsigned words, unsigned long *mask) { return memset(mask, 255, words * sizeof *mask), affinity(); }
int nvmlDeviceGetCpuAffinityWithinScope(void *device, unsigned words, unsigned long *mask, unsigned scope) {
  return nvmlDeviceGetCpuAffinity(device, words, mask);
}
int nvmlDeviceSetCpuAffinity(void *device) { return affinity(); }
int nvmlDeviceClearCpuAffinity(void *device) { return SUCCESS; }

/* ---- Figures of use: none ---- */

int nvmlDeviceGetUtilizationRates(void *device, void *rates) { return NOT_SUPPORTED; }
int nvmlDeviceGetJpgUtilization(void *device, unsigned *share, unsigned *period) { return NOT_SUPPORTED; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *energy) { return NOT_SUPPORTED; }
int nvmlGpmQueryDeviceSupport(void *device, void *support) { return NOT_SUPPORTED; }
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, void *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info) { return NOT_SUPPORTED; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *infos) { return *count = 0, SUCCESS; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *infos) { return *count = 0, SUCCESS; }
