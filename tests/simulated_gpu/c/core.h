/* The simulated device itself: memory, streams, events. The CUDA runtime, the driver and nvJPEG are thin layers on it.
 *
 * A stream is a queue of tasks. Nothing runs when it is queued: tasks run when somebody waits for them, those of other streams
 * in between as a generator of random numbers has it (SIMULATED_GPU_SEED). So what is not ordered by an event or a wait
 * happens in every order, sooner or later. With SIMULATED_GPU_EAGER=1 each task runs as soon as it is queued. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define MOST_DEVICES 2
#define POISON 0xDB /* what is read out of memory that was never written, or that was given back */

enum memory { PAGEABLE, PINNED, DEVICE, MANAGED };

typedef struct Stream Stream;

typedef struct {
  Stream *stream;    /* on which it was recorded; NULL: never */
  uint64_t position; /* how many tasks that stream has done when the event is over */
  int timed;
  double *time; /* seconds, when it passed */
} Event;

/* Devices: those that CUDA_VISIBLE_DEVICES leaves, numbered from 0. */
int device_count(void);
int device_current(void);
int device_set(int device);     /* 0, or -1: no such device */
int device_physical(int device); /* its number without CUDA_VISIBLE_DEVICES */
int device_architecture(void); /* such as 90 for 9.0 */
size_t device_total(void);
size_t device_used(int device);
void device_uuid(int physical, unsigned char uuid[16]);
extern const char device_name[];

/* What a kernel did that no device gets over, such as 716 for an address that is not aligned: all later calls return it. */
void device_fault(int error);
int device_faulted(void); /* 0: nothing of the kind */

/* Memory. Allocations are zero beyond the first MiBs, which are poisoned; what is freed is poisoned and kept for a while. */
void *memory_allocate(enum memory kind, int device, size_t size); /* NULL: none left */
int memory_free(void *pointer);                                   /* 0, or -1: not the start of an allocation */
enum memory memory_kind(const void *pointer, int *device, void **start, size_t *size);
int memory_register(void *pointer, size_t size); /* pageable memory becomes pinned */
int memory_unregister(void *pointer);

/* Streams. NULL, 1 and 2 are the legacy stream and that of each thread, as in CUDA. */
Stream *stream_create(int blocking, int priority);
void stream_destroy(Stream *stream);
Stream *stream_named(void *handle); /* the stream of a handle of CUDA's */
int stream_priority(Stream *stream);
int stream_device(Stream *stream);
int stream_done(Stream *stream); /* and does a task or two, so that polling ends */
void stream_wait(Stream *stream);
void device_wait(void);

void queue_copy(Stream *stream, void *to, const void *from, size_t size);
void queue_copy_2d(Stream *stream, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height);
void queue_set(Stream *stream, void *to, int value, size_t size);
void queue_set_words(Stream *stream, void *to, uint32_t value, int bytes, size_t count);
void queue_call(Stream *stream, void (*function)(void *), void *argument, int from_user);
void queue_free(Stream *stream, void *pointer);
void queue_delay(Stream *stream); /* what follows is late */
void queue_kernel(Stream *stream);

/* Events. */
void event_record(Event *event, Stream *stream);
void event_wait_on(Stream *stream, Event *event);
int event_done(Event *event);
void event_wait(Event *event);

/* Numbers that tests read. */
enum count { LAUNCHES, COPIES, ALLOCATIONS, WAITS, JPEG_ENGINE, JPEG_CUDA, REFUSED, COUNTS };
void count_one(enum count what, long by);
long simulated_count(int what);
/* Of this thread: tasks that it queued, and calls in which it waited for a whole stream or device. */
extern __thread long simulated_queued, simulated_waited;
long simulated_queued_here(void);
long simulated_waited_here(void);

/* A number of SIMULATED_GPU_FAIL, such as 5 of "allocation=5,driver=11040"; `otherwise` if it is not there. */
long failure(const char *name, long otherwise);
/* A number of microseconds of SIMULATED_GPU_TIMES; 0 if it is not there. */
long duration(const char *name);
/* Says on stderr, once for each name, that a function is not simulated. */
void say_unsupported(const char *name);
