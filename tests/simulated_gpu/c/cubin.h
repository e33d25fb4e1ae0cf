/* What the machine code of a module says of its kernels: a cubin is an ELF file. The layout of what NVIDIA puts into it is as
 * cuobjdump and nvdisasm of CUDA 12 and 13 show it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct {
  char name[256];
  size_t shared;     /* bytes that its own variables take */
  unsigned threads;  /* at most, of __launch_bounds__; 1024 without */
  unsigned registers; /* of a thread */
  int parameters;     /* their number, and of the first ones the bytes */
  int bytes[16];
} Kernel;

typedef struct {
  int known; /* whether it is a cubin; of PTX, which the driver would compile, nothing is known */
  int architecture;
  size_t count;
  Kernel *kernels;
} Cubin;

Cubin cubin_read(const void *image);
void cubin_forget(Cubin *cubin);
