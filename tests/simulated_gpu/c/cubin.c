#include "cubin.h"
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_OF_CUDA = 190, ABI_OF_CUDA_13 = 8 };
enum { OF_THE_SYSTEM = 1024 }; /* bytes of shared memory, from 9.0 on counted with a kernel's own */
enum { WITH_SIZE = 4, MAX_THREADS = 0x05, PARAMETER = 0x17, REGISTERS = 0x2f }; /* of .nv.info: the form of an entry, and attributes */

/* Calls `entry` for each attribute that has a size; the others are four bytes. */
static void read_info(const char *at, const char *end, void (*entry)(int, const uint32_t *, void *), void *argument) {
  while (at + 4 <= end) {
    uint8_t form = (uint8_t)at[0], attribute = (uint8_t)at[1];
    uint16_t size = 0;
    if (form == WITH_SIZE) {
      memcpy(&size, at + 2, 2);
      if (at + 4 + size > end) return;
      uint32_t values[4] = {0};
      memcpy(values, at + 4, size < sizeof values ? size : sizeof values);
      entry(attribute, values, argument);
    }
    at += 4 + size;
  }
}

static void take_limits(int attribute, const uint32_t *values, void *argument) {
  Kernel *kernel = argument;
  if (attribute == MAX_THREADS) kernel->threads = values[0] * values[1] * values[2];
  if (attribute == PARAMETER) {
    int number = values[1] & 0xffff;
    if (number < 16) kernel->bytes[number] = (int)(values[2] >> 18);
    kernel->parameters++;
  }
}

typedef struct {
  Cubin *cubin;
  const char *image, *names;
  const Elf64_Sym *symbols;
} Symbols;

static Kernel *find(Cubin *cubin, const char *name) {
  for (size_t i = 0; i < cubin->count; i++)
    if (!strcmp(cubin->kernels[i].name, name)) return &cubin->kernels[i];
  return NULL;
}

static void take_registers(int attribute, const uint32_t *values, void *argument) {
  Symbols *all = argument;
  if (attribute != REGISTERS || !all->symbols) return;
  Kernel *kernel = find(all->cubin, all->names + all->symbols[values[0]].st_name);
  if (kernel) kernel->registers = values[1];
}

Cubin cubin_read(const void *image) {
  Cubin cubin = {0};
  const char *bytes = image;
  const Elf64_Ehdr *header = image;
  if (memcmp(image, ELFMAG, SELFMAG) || header->e_machine != MACHINE_OF_CUDA) return cubin;
  cubin.known = 1;
  int of_13 = header->e_ident[EI_ABIVERSION] >= ABI_OF_CUDA_13;
  cubin.architecture = (int)(of_13 ? header->e_flags >> 8 : header->e_flags) & 255;

  const Elf64_Shdr *sections = (const void *)(bytes + header->e_shoff);
  const char *names = bytes + sections[header->e_shstrndx].sh_offset;
  Symbols all = {.cubin = &cubin};
  cubin.kernels = calloc(header->e_shnum, sizeof *cubin.kernels);
  for (int i = 0; i < header->e_shnum; i++) {
    const char *name = names + sections[i].sh_name;
    if (!strncmp(name, ".text.", 6)) {
      Kernel *kernel = &cubin.kernels[cubin.count++];
      snprintf(kernel->name, sizeof kernel->name, "%s", name + 6);
      kernel->threads = 1024;
    }
    if (sections[i].sh_type == SHT_SYMTAB)
      all.symbols = (const void *)(bytes + sections[i].sh_offset), all.names = bytes + sections[sections[i].sh_link].sh_offset;
  }

  for (int i = 0; i < header->e_shnum; i++) {
    const char *name = names + sections[i].sh_name, *start = bytes + sections[i].sh_offset, *end = start + sections[i].sh_size;
    Kernel *kernel = strncmp(name, ".nv.shared.", 11) ? NULL : find(&cubin, name + 11);
    if (kernel) kernel->shared = sections[i].sh_size - (cubin.architecture >= 90 ? OF_THE_SYSTEM : 0);
    kernel = strncmp(name, ".nv.info.", 9) ? NULL : find(&cubin, name + 9);
    if (kernel) read_info(start, end, take_limits, kernel);
    if (!strcmp(name, ".nv.info")) read_info(start, end, take_registers, &all);
  }
  return cubin;
}

void cubin_forget(Cubin *cubin) {
  free(cubin->kernels);
  *cubin = (Cubin){0};
}
