#define _GNU_SOURCE
#include "core.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define POISONED_WHEN_NEW (32 * MIB) /* the rest of a large allocation is not touched, so it costs nothing */
#define KEPT_AT_MOST (192 * MIB)     /* of freed memory, poisoned */
#define MOST_QUEUED 20000            /* tasks in all streams, before the oldest are done */

const char device_name[] = "NVIDIA H100 80GB HBM3 (simulated)";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static long counts[COUNTS];

__thread long simulated_queued, simulated_waited;
long simulated_queued_here(void) { return simulated_queued; }
long simulated_waited_here(void) { return simulated_waited; }

void count_one(enum count what, long by) { __atomic_add_fetch(&counts[what], by, __ATOMIC_RELAXED); }
long simulated_count(int what) { return what >= 0 && what < COUNTS ? counts[what] : -1; }

/* ---- Options ---- */

static long option(const char *variable, const char *name, long otherwise) {
  const char *all = getenv(variable);
  size_t length = strlen(name);
  for (const char *at = all; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (!strncmp(at, name, length) && at[length] == '=') return strtol(at + length + 1, NULL, 10);
  return otherwise;
}

long failure(const char *name, long otherwise) { return option("SIMULATED_GPU_FAIL", name, otherwise); }
long duration(const char *name) { return option("SIMULATED_GPU_TIMES", name, 0); }

static int eager(void) {
  static int found = -1;
  if (found < 0) found = getenv("SIMULATED_GPU_EAGER") && !strcmp(getenv("SIMULATED_GPU_EAGER"), "1");
  return found;
}

static uint64_t draw(void) {
  static uint64_t state;
  if (!state) state = 0x9E3779B97F4A7C15ull ^ (getenv("SIMULATED_GPU_SEED") ? strtoull(getenv("SIMULATED_GPU_SEED"), NULL, 10) : 0);
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state >> 11;
}

void say_unsupported(const char *name) {
  static const char *said[256];
  static int number;
  pthread_mutex_lock(&lock);
  int known = 0;
  for (int i = 0; i < number; i++) known |= !strcmp(said[i], name);
  if (!known && number < 256) {
    said[number++] = name;
    fprintf(stderr, "simulated GPU: %s is not simulated; it returns \"not supported\"\n", name);
  }
  pthread_mutex_unlock(&lock);
}

/* ---- Devices ---- */

static int visible[MOST_DEVICES], visible_count = -1;
static __thread int current_device;

void device_uuid(int physical, unsigned char uuid[16]) {
  memset(uuid, 0x51, 16);
  uuid[15] = (unsigned char)physical;
}

/* As the driver does it: up to the first entry that names no device. */
static void read_visible_devices(void) {
  const char *all = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  if (!all)
    for (; count < MOST_DEVICES; count++) visible[count] = count;
  else
    for (const char *at = all; *at && count < MOST_DEVICES;) {
      char *end;
      long number = strtol(at, &end, 10);
      if (!strncmp(at, "GPU-", 4)) {
        const char *comma = strchr(at, ',');
        end = comma ? (char *)comma : (char *)at + strlen(at);
        number = end - at >= 2 ? strtol((char[]){end[-2], end[-1], 0}, NULL, 16) : -1;
      }
      if (end == at || number < 0 || number >= MOST_DEVICES) break;
      visible[count++] = (int)number;
      at = *end == ',' ? end + 1 : end;
    }
  visible_count = count;
}

int device_count(void) {
  if (visible_count < 0) read_visible_devices();
  return visible_count;
}
int device_current(void) { return current_device; }
int device_set(int device) {
  if (device < 0 || device >= device_count()) return -1;
  current_device = device;
  return 0;
}
int device_physical(int device) { return device < device_count() ? visible[device] : -1; }
int device_architecture(void) { return (int)failure("architecture", 90); }

static int fault;
void device_fault(int error) { __atomic_store_n(&fault, error, __ATOMIC_RELAXED); }
int device_faulted(void) { return __atomic_load_n(&fault, __ATOMIC_RELAXED); }
size_t device_total(void) { return (size_t)failure("memory_mib", 81559) * MIB; }

/* ---- Memory ---- */

typedef struct {
  char *start;
  size_t size, mapped;
  enum memory kind;
  int device, registered;
} Block;

static Block *blocks; /* by address */
static size_t block_count, block_room;
static size_t used[MOST_DEVICES];
static struct { char *start; size_t mapped; } kept[4096];
static size_t kept_first, kept_count, kept_size;

size_t device_used(int device) { return used[device]; }

/* The number of the first block that starts after the pointer. */
static size_t blocks_before(const void *pointer) {
  size_t low = 0, high = block_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle].start <= (const char *)pointer) low = middle + 1;
    else high = middle;
  }
  return low;
}

static Block *block_of(const void *pointer) {
  size_t at = blocks_before(pointer);
  if (!at) return NULL;
  Block *block = &blocks[at - 1];
  return (const char *)pointer < block->start + block->size ? block : NULL;
}

static void add_block(Block block) {
  if (block_count == block_room) blocks = realloc(blocks, (block_room = block_room ? 2 * block_room : 1024) * sizeof *blocks);
  size_t at = blocks_before(block.start);
  memmove(blocks + at + 1, blocks + at, (block_count++ - at) * sizeof *blocks);
  blocks[at] = block;
}

static void remove_block(Block *block) {
  size_t at = (size_t)(block - blocks);
  memmove(block, block + 1, (--block_count - at) * sizeof *blocks);
}

void *memory_allocate(enum memory kind, int device, size_t size) {
  static long number;
  long page = sysconf(_SC_PAGESIZE);
  size_t mapped = (size + (size_t)page) / (size_t)page * (size_t)page;
  int on_device = kind == DEVICE || kind == MANAGED;

  pthread_mutex_lock(&lock);
  int none_left = on_device && (used[device] + size > device_total() || ++number >= failure("allocation", 1L << 62));
  char *start = none_left ? MAP_FAILED : mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start != MAP_FAILED) {
    add_block((Block){start, size ? size : 1, mapped, kind, device, 0});
    if (on_device) used[device] += size;
  }
  pthread_mutex_unlock(&lock);

  if (start == MAP_FAILED) return NULL;
  count_one(ALLOCATIONS, 1);
  if (kind != PINNED) memset(start, POISON, size < POISONED_WHEN_NEW ? size : POISONED_WHEN_NEW);
  return start;
}

/* Only pages that were ever touched: a GiB that nobody used stays untouched. */
static void poison(char *start, size_t mapped) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = mapped / page;
  unsigned char *resident = malloc(pages);
  if (resident && !mincore(start, mapped, resident))
    for (size_t i = 0; i < pages; i++)
      if (resident[i] & 1) memset(start + i * page, POISON, page);
  free(resident);
}

/* The oldest go first. Lock held. */
static void keep(char *start, size_t mapped) {
  poison(start, mapped);
  if (mapped > KEPT_AT_MOST) {
    munmap(start, mapped);
    return;
  }
  while (kept_count && (kept_count == 4096 || kept_size + mapped > KEPT_AT_MOST)) {
    munmap(kept[kept_first].start, kept[kept_first].mapped);
    kept_size -= kept[kept_first].mapped;
    kept_first = (kept_first + 1) % 4096, kept_count--;
  }
  kept[(kept_first + kept_count++) % 4096].start = start;
  kept[(kept_first + kept_count - 1) % 4096].mapped = mapped;
  kept_size += mapped;
}

/* For tests that measure this process: what is kept goes. */
void simulated_forget(void) {
  pthread_mutex_lock(&lock);
  for (; kept_count; kept_count--, kept_first = (kept_first + 1) % 4096) munmap(kept[kept_first].start, kept[kept_first].mapped);
  kept_size = 0;
  pthread_mutex_unlock(&lock);
}

static int free_locked(void *pointer) {
  Block *block = block_of(pointer);
  if (!block || block->start != pointer || block->registered) return -1;
  Block freed = *block;
  remove_block(block);
  if (freed.kind != PINNED) used[freed.device] -= freed.size == 1 ? 0 : freed.size;
  keep(freed.start, freed.mapped);
  return 0;
}

int memory_free(void *pointer) {
  pthread_mutex_lock(&lock);
  int failed = free_locked(pointer);
  pthread_mutex_unlock(&lock);
  return failed;
}

enum memory memory_kind(const void *pointer, int *device, void **start, size_t *size) {
  pthread_mutex_lock(&lock);
  Block *block = block_of(pointer);
  enum memory kind = block ? block->kind : PAGEABLE;
  if (block && device) *device = block->device;
  if (block && start) *start = block->start;
  if (block && size) *size = block->size;
  pthread_mutex_unlock(&lock);
  return kind;
}

int memory_register(void *pointer, size_t size) {
  pthread_mutex_lock(&lock);
  int failed = block_of(pointer) != NULL;
  if (!failed) add_block((Block){pointer, size, 0, PINNED, current_device, 1});
  pthread_mutex_unlock(&lock);
  return failed ? -1 : 0;
}

int memory_unregister(void *pointer) {
  pthread_mutex_lock(&lock);
  Block *block = block_of(pointer);
  int failed = !block || !block->registered || block->start != pointer;
  if (!failed) remove_block(block);
  pthread_mutex_unlock(&lock);
  return failed ? -1 : 0;
}

/* ---- Streams ---- */

enum kind { COPY, SET, CALL, FREE, PASS, WAIT };

typedef struct Task {
  struct Task *next;
  enum kind kind;
  char *to;
  const char *from;
  size_t to_pitch, from_pitch, width, height; /* of a copy or a set: rows */
  uint32_t value;
  int bytes; /* of the value */
  void *own; /* memory that goes with the task */
  void (*function)(void *);
  void *argument;
  int from_user;
  int patience;  /* of a delay: how often it is asked for in vain; only who waits gets past it */
  Stream *other; /* of a wait: until it has done `position` tasks */
  uint64_t position;
} Task;

struct Stream {
  Stream *next;
  int device, blocking, priority, destroyed, running;
  uint64_t queued, done;
  Task *first, *last;
};

static Stream *streams;
static long tasks_queued, calls_queued;
static Stream legacy[MOST_DEVICES], per_thread[MOST_DEVICES];

static Stream *add_stream(Stream *stream, int device, int blocking, int priority) {
  stream->device = device, stream->blocking = blocking, stream->priority = priority;
  stream->next = streams;
  return streams = stream;
}

Stream *stream_create(int blocking, int priority) {
  Stream *stream = calloc(1, sizeof *stream);
  pthread_mutex_lock(&lock);
  add_stream(stream, current_device, blocking, priority);
  pthread_mutex_unlock(&lock);
  return stream;
}

Stream *stream_named(void *handle) {
  static int there;
  if (!there) {
    pthread_mutex_lock(&lock);
    for (int i = 0; !there && i < MOST_DEVICES; i++) add_stream(&legacy[i], i, 0, 0), add_stream(&per_thread[i], i, 1, 0);
    there = 1;
    pthread_mutex_unlock(&lock);
  }
  if (handle == NULL || handle == (void *)1) return &legacy[current_device];
  return handle == (void *)2 ? &per_thread[current_device] : handle;
}

int stream_priority(Stream *stream) { return stream->priority; }
int stream_device(Stream *stream) { return stream->device; }

static int bytes_per_value(Task *task) { return task->bytes ? task->bytes : 1; }

static void fill(Task *task) {
  for (size_t row = 0; row < task->height; row++) {
    char *to = task->to + row * task->to_pitch;
    if (bytes_per_value(task) == 1) memset(to, (int)task->value, task->width);
    else
      for (size_t at = 0; at < task->width; at += (size_t)task->bytes) memcpy(to + at, &task->value, (size_t)task->bytes);
  }
}

static void copy(Task *task) {
  if (task->height == 1) memmove(task->to, task->from, task->width);
  else
    for (size_t row = 0; row < task->height; row++)
      memmove(task->to + row * task->to_pitch, task->from + row * task->from_pitch, task->width);
}

/* Of functions of the user the lock is let go, since they may take others. Lock held before and after. */
static void perform(Stream *stream, Task *task) {
  switch (task->kind) {
    case COPY: copy(task); break;
    case SET: fill(task); break;
    case FREE: free_locked(task->to); break;
    case CALL:
      stream->running = 1;
      pthread_mutex_unlock(&lock);
      task->function(task->argument);
      pthread_mutex_lock(&lock);
      stream->running = 0;
      calls_queued -= task->from_user;
      break;
    case PASS: case WAIT: break;
  }
}

/* Does one task towards the end of this stream's first one; 0: another thread is at it. Lock held. */
static int advance(Stream *stream) {
  Task *task = stream->first;
  if (!task || stream->running) return 0;
  if (task->kind == WAIT && task->other->done < task->position) return advance(task->other);

  perform(stream, task);
  stream->first = task->next;
  if (!stream->first) stream->last = NULL;
  stream->done++, tasks_queued--;
  free(task->own);
  free(task);
  pthread_cond_broadcast(&progress);
  return 1;
}

/* A task of any stream, sometimes: the device does what it likes where nothing says otherwise. Lock held. */
static void stray(unsigned one_in) {
  if (draw() % one_in || !tasks_queued) return;
  size_t busy = 0;
  for (Stream *stream = streams; stream; stream = stream->next) busy += stream->first && !stream->first->patience;
  if (!busy) return;
  size_t chosen = draw() % busy;
  for (Stream *stream = streams; stream; stream = stream->next)
    if (stream->first && !stream->first->patience && !chosen--) {
      advance(stream);
      return;
    }
}

/* Python's lock must not be held by a thread that sleeps, for the task that it waits for may need it. */
static void sleep_without_python(void) {
  static int (*holds)(void), known;
  static void *(*release)(void);
  static void (*take)(void *);
  if (!known) {
    holds = dlsym(RTLD_DEFAULT, "PyGILState_Check");
    release = dlsym(RTLD_DEFAULT, "PyEval_SaveThread"), take = dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
    known = 1;
  }
  void *state = holds && holds() ? release() : NULL;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 20000000;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  pthread_cond_timedwait(&progress, &lock, &until);
  if (state) {
    pthread_mutex_unlock(&lock);
    take(state);
    pthread_mutex_lock(&lock);
  }
}

/* Until the stream has done so many tasks. Lock held. */
static void reach(Stream *stream, uint64_t position) {
  while (stream->done < position) {
    stray(2);
    if (stream->done < position && !advance(stream)) sleep_without_python();
  }
}

void stream_wait(Stream *stream) {
  count_one(WAITS, 1);
  pthread_mutex_lock(&lock);
  if (stream == &legacy[stream->device])
    for (Stream *other = streams; other; other = other->next)
      if (other->blocking && other->device == stream->device) reach(other, other->queued);
  reach(stream, stream->queued);
  pthread_mutex_unlock(&lock);
}

void device_wait(void) {
  count_one(WAITS, 1);
  pthread_mutex_lock(&lock);
  for (Stream *stream = streams; stream; stream = stream->next)
    if (stream->device == current_device) reach(stream, stream->queued);
  pthread_mutex_unlock(&lock);
}

/* Whoever polls gets on, too. Lock held. */
static void poll(Stream *stream) {
  stray(2);
  if (stream->first && stream->first->patience) stream->first->patience--;
  else advance(stream);
}

int stream_done(Stream *stream) {
  pthread_mutex_lock(&lock);
  int done = stream->done == stream->queued;
  if (!done) poll(stream);
  pthread_mutex_unlock(&lock);
  return done;
}

/* The stream is forgotten when it has done its tasks; its few bytes are kept, for events and waits name it. */
void stream_destroy(Stream *stream) {
  pthread_mutex_lock(&lock);
  stream->destroyed = 1;
  for (Stream **at = &streams; *at;)
    if ((*at)->destroyed && !(*at)->first && !(*at)->running) *at = (*at)->next;
    else at = &(*at)->next;
  pthread_mutex_unlock(&lock);
}

/* Functions that the user queued may be what he waits for, without any call to CUDA: so they run after a while. */
static void *run_calls(void *nothing) {
  for (;;) {
    usleep(1000);
    pthread_mutex_lock(&lock);
    if (calls_queued)
      for (Stream *stream = streams; stream; stream = stream->next)
        if (stream->first && !stream->running) {
          poll(stream);
          break;
        }
    pthread_mutex_unlock(&lock);
  }
  return nothing;
}

static void start_to_run_calls(void) {
  static pid_t started; /* a forked process has none of its parent's threads */
  pthread_t thread;
  if (started == getpid()) return;
  started = getpid();
  pthread_create(&thread, NULL, run_calls, NULL);
  pthread_detach(thread);
}

static void append(Stream *stream, Task task) {
  Task *queued = malloc(sizeof task);
  *queued = task;
  if (stream->last) stream->last->next = queued;
  else stream->first = queued;
  stream->last = queued;
  stream->queued++, tasks_queued++;
}

static void append_wait(Stream *stream, Stream *other, uint64_t position) {
  if (other->done < position && stream != other) append(stream, (Task){.kind = WAIT, .other = other, .position = position});
}

/* The legacy stream waits for all blocking ones of its device, and they wait for it. Lock held. */
static void append_in_order(Stream *stream, Task task) {
  Stream *old = &legacy[stream->device];
  if (stream == old)
    for (Stream *other = streams; other; other = other->next) {
      if (other->blocking && other->device == stream->device) append_wait(stream, other, other->queued);
    }
  else if (stream->blocking) append_wait(stream, old, old->queued);
  append(stream, task);
}

static void queue(Stream *stream, Task task) {
  simulated_queued++;
  pthread_mutex_lock(&lock);
  append_in_order(stream, task);
  calls_queued += task.from_user;
  if (task.from_user) start_to_run_calls();
  if (eager()) reach(stream, stream->queued);
  else stray(4);
  if (tasks_queued > MOST_QUEUED) reach(stream, stream->queued);
  pthread_mutex_unlock(&lock);
}

/* As CUDA does it: pageable memory is read before this returns, and written before it returns. */
void queue_copy_2d(Stream *stream, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height) {
  if (!width || !height) return;
  count_one(COPIES, 1);
  Task task = {.kind = COPY, .to = to, .from = from, .to_pitch = to_pitch, .from_pitch = from_pitch, .width = width, .height = height};
  if (memory_kind(from, NULL, NULL, NULL) == PAGEABLE) {
    task.own = malloc(width * height);
    for (size_t row = 0; row < height; row++) memcpy((char *)task.own + row * width, (const char *)from + row * from_pitch, width);
    task.from = task.own, task.from_pitch = width;
  }
  queue(stream, task);
  if (memory_kind(to, NULL, NULL, NULL) == PAGEABLE) simulated_waited++, stream_wait(stream);
}

void queue_copy(Stream *stream, void *to, const void *from, size_t size) { queue_copy_2d(stream, to, size, from, size, size, 1); }

void queue_set(Stream *stream, void *to, int value, size_t size) { queue_set_words(stream, to, (uint32_t)value & 255, 1, size); }
void queue_set_words(Stream *stream, void *to, uint32_t value, int bytes, size_t count) {
  if (count) queue(stream, (Task){.kind = SET, .to = to, .value = value, .bytes = bytes, .width = count * (size_t)bytes, .height = 1});
}

void queue_call(Stream *stream, void (*function)(void *), void *argument, int from_user) {
  queue(stream, (Task){.kind = CALL, .function = function, .argument = argument, .from_user = from_user});
}
void queue_delay(Stream *stream) { queue(stream, (Task){.kind = PASS, .patience = 100}); }
void queue_free(Stream *stream, void *pointer) { queue(stream, (Task){.kind = FREE, .to = pointer}); }
void queue_kernel(Stream *stream) {
  count_one(LAUNCHES, 1);
  queue(stream, (Task){.kind = PASS});
}

/* ---- Events ---- */

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void note_time(void *time) { *(double *)time = now(); }

void event_record(Event *event, Stream *stream) {
  if (event->timed) {
    if (!event->time) event->time = calloc(1, sizeof *event->time);
    queue_call(stream, note_time, event->time, 0);
  } else
    queue(stream, (Task){.kind = PASS});
  pthread_mutex_lock(&lock);
  event->stream = stream;
  event->position = stream->queued;
  pthread_mutex_unlock(&lock);
}

void event_wait_on(Stream *stream, Event *event) {
  if (!event->stream) return;
  pthread_mutex_lock(&lock);
  append_wait(stream, event->stream, event->position);
  pthread_mutex_unlock(&lock);
}

int event_done(Event *event) {
  if (!event->stream) return 1;
  pthread_mutex_lock(&lock);
  int done = event->stream->done >= event->position;
  if (!done) poll(event->stream);
  pthread_mutex_unlock(&lock);
  return done;
}

void event_wait(Event *event) {
  count_one(WAITS, 1);
  if (!event->stream) return;
  pthread_mutex_lock(&lock);
  reach(event->stream, event->position);
  pthread_mutex_unlock(&lock);
}
