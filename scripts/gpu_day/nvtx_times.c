/* An NVTX tool: how often each range of DALI and nvImageCodec ran, its wall time and its CPU time, by thread. A process that starts with
 * NVTX_INJECTION64_PATH=thisfile.so has it; nvtx_times_reset and nvtx_times_write are called by ctypes. What follows a '#' in a name, such as
 * the number of an operator, is left out. */
#define _GNU_SOURCE
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 64
#define NAMES 512
#define LENGTH 72

typedef struct {
  char name[LENGTH];
  long count, wall, cpu, longest; /* nanoseconds */
} Row;

typedef struct {
  int row;
  long wall, cpu; /* when the range began */
} Open;

typedef struct Thread {
  long id;
  int depth, rows;
  Open open[DEPTH];
  Row row[NAMES];
  struct Thread *next;
} Thread;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Thread *threads;
static __thread Thread *mine;

static long now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * 1000000000L + time.tv_nsec;
}

static Thread *this_thread(void) {
  if (mine) return mine;
  mine = calloc(1, sizeof *mine);
  mine->id = syscall(SYS_gettid);
  pthread_mutex_lock(&lock);
  mine->next = threads, threads = mine;
  pthread_mutex_unlock(&lock);
  return mine;
}

static int row_of(Thread *thread, const char *text) {
  char name[LENGTH] = {0};
  for (int i = 0; text[i] && text[i] != '#' && i < LENGTH - 1; i++) name[i] = text[i];
  for (int i = 0; i < thread->rows; i++)
    if (!strcmp(thread->row[i].name, name)) return i;
  if (thread->rows == NAMES) return NAMES - 1;
  strcpy(thread->row[thread->rows].name, name);
  return thread->rows++;
}

static int begin(const char *name) {
  Thread *thread = this_thread();
  int depth = thread->depth++;
  if (depth < DEPTH) thread->open[depth] = (Open){row_of(thread, name ? name : "?"), now(CLOCK_MONOTONIC), now(CLOCK_THREAD_CPUTIME_ID)};
  return depth;
}

static int end(void) {
  Thread *thread = this_thread();
  if (!thread->depth || --thread->depth >= DEPTH) return thread->depth;
  Open *open = &thread->open[thread->depth];
  Row *row = &thread->row[open->row];
  long wall = now(CLOCK_MONOTONIC) - open->wall;
  row->count++, row->wall += wall, row->cpu += now(CLOCK_THREAD_CPUTIME_ID) - open->cpu;
  if (wall > row->longest) row->longest = wall;
  return thread->depth;
}

/* ---- What NVTX calls; a registered text and a domain are their names ---- */

static int push(const char *name) { return begin(name); }
static int pop(void) { return end(); }
static int push_in(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
  if (!event) return begin(NULL);
  if (event->messageType == NVTX_MESSAGE_TYPE_REGISTERED) return begin((const char *)event->message.registered);
  return begin(event->messageType == NVTX_MESSAGE_TYPE_ASCII ? event->message.ascii : NULL);
}
static int push_event(const nvtxEventAttributes_t *event) { return push_in(NULL, event); }
static int pop_in(nvtxDomainHandle_t domain) { return end(); }
static nvtxStringHandle_t keep_text(nvtxDomainHandle_t domain, const char *text) { return (nvtxStringHandle_t)strdup(text); }
static nvtxDomainHandle_t keep_domain(const char *name) { return (nvtxDomainHandle_t)strdup(name); }

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table;
  unsigned size;
  if (!callbacks) return 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) {
    *table[NVTX_CBID_CORE_RangePushEx] = (NvtxFunctionPointer)push_event;
    *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
  }
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) {
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_in;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_in;
    *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)keep_text;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)keep_domain;
  }
  return 1;
}

/* ---- What the measurement calls ---- */

void nvtx_times_reset(void) {
  pthread_mutex_lock(&lock);
  for (Thread *thread = threads; thread; thread = thread->next)
    for (int i = 0; i < thread->rows; i++) thread->row[i].count = thread->row[i].wall = thread->row[i].cpu = thread->row[i].longest = 0;
  pthread_mutex_unlock(&lock);
}

/* A line for each thread and range: the thread's name, that of the range, count, wall, CPU and longest. */
void nvtx_times_write(const char *path) {
  FILE *out = fopen(path, "w");
  if (!out) return;
  pthread_mutex_lock(&lock);
  for (Thread *thread = threads; thread; thread = thread->next) {
    char file[64], name[32] = "ended";
    snprintf(file, sizeof file, "/proc/self/task/%ld/comm", thread->id);
    FILE *in = fopen(file, "r");
    if (in && fgets(name, sizeof name, in)) name[strcspn(name, "\n")] = 0;
    if (in) fclose(in);
    for (int i = 0; i < thread->rows; i++) {
      Row *row = &thread->row[i];
      if (row->count) fprintf(out, "%s\t%s\t%ld\t%ld\t%ld\t%ld\n", name, row->name, row->count, row->wall, row->cpu, row->longest);
    }
  }
  pthread_mutex_unlock(&lock);
  fclose(out);
}
