/* nvJPEG: sim_NAME stands in for NAME. libjpeg-turbo decodes when nvJPEG would read the bytes, and the pixels are copied in the
 * order of the stream. Its pixels are not nvJPEG's; windows, sizes, orientation and what is refused are what they should be. */
#define _GNU_SOURCE
#include "core.h"
#include <dlfcn.h>
#include <nvjpeg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* after stdio.h, which it does not include */
#include <jpeglib.h>
#include <jerror.h>

#define SIMULATED(name) nvjpegStatus_t sim_##name
#define OK NVJPEG_STATUS_SUCCESS

typedef struct {
  int engine, fancy;
} Handle;

typedef struct {
  nvjpegOutputFormat_t format;
  int x, y, width, height; /* of the region; width 0: all */
  int cmyk;
} Params;

typedef struct {
  const unsigned char *data;
  unsigned char *own;
  size_t length;
  unsigned width, height, components, precision;
  unsigned h[4], v[4], encoding; /* sampling factors; the marker of the frame */
} Jpeg;

typedef struct {
  unsigned char *pixels; /* decoded, not yet copied */
  int width, height, channels;
  nvjpegOutputFormat_t format;
} Decoded;

typedef struct {
  int on_engine;
} Decoder;

typedef struct {
  Decoded decoded;
  nvjpegOutputFormat_t format; /* of a batch */
  int batch;
} State;

int simulated_nvjpeg_unsupported(const char *name) {
  say_unsupported(name);
  return NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED;
}

/* nvJPEG2000 and nvTIFF: there, and never used. */
int simulated_other_codec(void) { return 0; }

/* No encoder: nvImageCodec, which asks for one at its start, does without. */
SIMULATED(nvjpegEncoderStateCreateWithBackend)
(nvjpegHandle_t handle, nvjpegEncoderState_t *state, nvjpegEncBackend_t backend, cudaStream_t stream) { return NVJPEG_STATUS_ARCH_MISMATCH; }

/* ---- Handles and what belongs to them ---- */

static nvjpegStatus_t create(size_t size, void *made) {
  *(void **)made = calloc(1, size);
  return OK;
}

static nvjpegStatus_t create_handle(int backend, unsigned flags, nvjpegHandle_t *handle) {
  int engine = backend == NVJPEG_BACKEND_HARDWARE || backend == NVJPEG_BACKEND_HARDWARE_DEVICE;
  if (engine && failure("engines", 1) == 0) return NVJPEG_STATUS_ARCH_MISMATCH;
  create(sizeof(Handle), handle);
  *(Handle *)*handle = (Handle){engine, (flags & NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION) != 0};
  return OK;
}

SIMULATED(nvjpegCreate)(nvjpegBackend_t backend, nvjpegDevAllocator_t *allocator, nvjpegHandle_t *handle) { return create_handle(backend, 0, handle); }
SIMULATED(nvjpegCreateSimple)(nvjpegHandle_t *handle) { return create_handle(NVJPEG_BACKEND_DEFAULT, 0, handle); }
SIMULATED(nvjpegCreateEx)
(nvjpegBackend_t backend, nvjpegDevAllocator_t *device, nvjpegPinnedAllocator_t *pinned, unsigned flags, nvjpegHandle_t *handle) {
  return create_handle(backend, flags, handle);
}
SIMULATED(nvjpegCreateExV2)
(nvjpegBackend_t backend, nvjpegDevAllocatorV2_t *device, nvjpegPinnedAllocatorV2_t *pinned, unsigned flags, nvjpegHandle_t *handle) {
  return create_handle(backend, flags, handle);
}
SIMULATED(nvjpegDestroy)(nvjpegHandle_t handle) { return free(handle), OK; }
SIMULATED(nvjpegSetDeviceMemoryPadding)(size_t padding, nvjpegHandle_t handle) { return OK; }
SIMULATED(nvjpegSetPinnedMemoryPadding)(size_t padding, nvjpegHandle_t handle) { return OK; }
SIMULATED(nvjpegGetHardwareDecoderInfo)(nvjpegHandle_t handle, unsigned *engines, unsigned *cores) { return *engines = 8, *cores = 1, OK; }

SIMULATED(nvjpegBufferPinnedCreate)(nvjpegHandle_t handle, nvjpegPinnedAllocator_t *allocator, nvjpegBufferPinned_t *buffer) { return create(16, buffer); }
SIMULATED(nvjpegBufferPinnedCreateV2)(nvjpegHandle_t handle, nvjpegPinnedAllocatorV2_t *allocator, nvjpegBufferPinned_t *buffer) { return create(16, buffer); }
SIMULATED(nvjpegBufferPinnedResize)(nvjpegBufferPinned_t buffer, size_t size, cudaStream_t stream) { return OK; }
SIMULATED(nvjpegBufferPinnedDestroy)(nvjpegBufferPinned_t buffer) { return free(buffer), OK; }
SIMULATED(nvjpegBufferDeviceCreate)(nvjpegHandle_t handle, nvjpegDevAllocator_t *allocator, nvjpegBufferDevice_t *buffer) { return create(16, buffer); }
SIMULATED(nvjpegBufferDeviceCreateV2)(nvjpegHandle_t handle, nvjpegDevAllocatorV2_t *allocator, nvjpegBufferDevice_t *buffer) { return create(16, buffer); }
SIMULATED(nvjpegBufferDeviceResize)(nvjpegBufferDevice_t buffer, size_t size, cudaStream_t stream) { return OK; }
SIMULATED(nvjpegBufferDeviceDestroy)(nvjpegBufferDevice_t buffer) { return free(buffer), OK; }
SIMULATED(nvjpegStateAttachPinnedBuffer)(nvjpegJpegState_t state, nvjpegBufferPinned_t buffer) { return OK; }
SIMULATED(nvjpegStateAttachDeviceBuffer)(nvjpegJpegState_t state, nvjpegBufferDevice_t buffer) { return OK; }

SIMULATED(nvjpegJpegStateCreate)(nvjpegHandle_t handle, nvjpegJpegState_t *state) { return create(sizeof(State), state); }
SIMULATED(nvjpegDecoderStateCreate)(nvjpegHandle_t handle, nvjpegJpegDecoder_t decoder, nvjpegJpegState_t *state) { return create(sizeof(State), state); }
SIMULATED(nvjpegJpegStateDestroy)(nvjpegJpegState_t state) {
  free(((State *)state)->decoded.pixels);
  return free(state), OK;
}
SIMULATED(nvjpegDecoderCreate)(nvjpegHandle_t handle, nvjpegBackend_t backend, nvjpegJpegDecoder_t *decoder) { return create(sizeof(Decoder), decoder); }
SIMULATED(nvjpegDecoderDestroy)(nvjpegJpegDecoder_t decoder) { return free(decoder), OK; }

SIMULATED(nvjpegDecodeParamsCreate)(nvjpegHandle_t handle, nvjpegDecodeParams_t *params) {
  create(sizeof(Params), params);
  ((Params *)*params)->format = NVJPEG_OUTPUT_RGB;
  return OK;
}
SIMULATED(nvjpegDecodeParamsDestroy)(nvjpegDecodeParams_t params) { return free(params), OK; }
SIMULATED(nvjpegDecodeParamsSetOutputFormat)(nvjpegDecodeParams_t params, nvjpegOutputFormat_t format) { return ((Params *)params)->format = format, OK; }
SIMULATED(nvjpegDecodeParamsSetAllowCMYK)(nvjpegDecodeParams_t params, int allow) { return ((Params *)params)->cmyk = allow, OK; }
SIMULATED(nvjpegDecodeParamsSetExifOrientation)(nvjpegDecodeParams_t params, nvjpegExifOrientation_t orientation) { return OK; }
SIMULATED(nvjpegDecodeParamsSetROI)(nvjpegDecodeParams_t params, int x, int y, int width, int height) {
  Params *each = (Params *)params;
  each->x = x, each->y = y, each->width = width > 0 ? width : 0, each->height = height > 0 ? height : 0;
  return OK;
}

/* ---- Headers ---- */

/* Up to the frame's marker, as nvJPEG needs it before it decodes. */
static nvjpegStatus_t parse(Jpeg *jpeg, const unsigned char *data, size_t length) {
  if (length < 4 || data[0] != 0xFF || data[1] != 0xD8) return NVJPEG_STATUS_BAD_JPEG;
  for (size_t at = 2; at + 9 < length;) {
    if (data[at] != 0xFF) return NVJPEG_STATUS_BAD_JPEG;
    unsigned marker = data[at + 1];
    if (marker == 0xFF) { at++; continue; }
    size_t size = (size_t)data[at + 2] << 8 | data[at + 3];
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      const unsigned char *frame = data + at + 4;
      jpeg->encoding = marker, jpeg->precision = frame[0];
      jpeg->height = (unsigned)frame[1] << 8 | frame[2], jpeg->width = (unsigned)frame[3] << 8 | frame[4];
      jpeg->components = frame[5];
      if (!jpeg->components || jpeg->components > 4 || !jpeg->width || !jpeg->height || at + 10 + 3 * jpeg->components > length)
        return NVJPEG_STATUS_BAD_JPEG;
      for (unsigned i = 0; i < jpeg->components; i++) jpeg->h[i] = frame[7 + 3 * i] >> 4, jpeg->v[i] = frame[7 + 3 * i] & 15;
      jpeg->data = data, jpeg->length = length;
      return OK;
    }
    at += 2 + size;
  }
  return NVJPEG_STATUS_BAD_JPEG;
}

static nvjpegChromaSubsampling_t subsampling(const Jpeg *jpeg) {
  if (jpeg->components == 1) return NVJPEG_CSS_GRAY;
  if (jpeg->components == 2 || !jpeg->h[1] || !jpeg->v[1] || jpeg->h[1] != jpeg->h[2] || jpeg->v[1] != jpeg->v[2]) return NVJPEG_CSS_UNKNOWN;
  unsigned h = jpeg->h[0] / jpeg->h[1], v = jpeg->v[0] / jpeg->v[1];
  if (h == 1) return v == 1 ? NVJPEG_CSS_444 : v == 2 ? NVJPEG_CSS_440 : NVJPEG_CSS_UNKNOWN;
  if (h == 2) return v == 1 ? NVJPEG_CSS_422 : v == 2 ? NVJPEG_CSS_420 : NVJPEG_CSS_UNKNOWN;
  return h == 4 ? v == 1 ? NVJPEG_CSS_411 : NVJPEG_CSS_410 : NVJPEG_CSS_UNKNOWN;
}

SIMULATED(nvjpegJpegStreamCreate)(nvjpegHandle_t handle, nvjpegJpegStream_t *stream) { return create(sizeof(Jpeg), stream); }
SIMULATED(nvjpegJpegStreamDestroy)(nvjpegJpegStream_t stream) {
  free(((Jpeg *)stream)->own);
  return free(stream), OK;
}
SIMULATED(nvjpegJpegStreamParse)
(nvjpegHandle_t handle, const unsigned char *data, size_t length, int metadata, int save, nvjpegJpegStream_t stream) {
  Jpeg *jpeg = (Jpeg *)stream;
  if (!save) return parse(jpeg, data, length);
  free(jpeg->own);
  jpeg->own = malloc(length ? length : 1);
  return parse(jpeg, memcpy(jpeg->own, data, length), length);
}
SIMULATED(nvjpegJpegStreamParseHeader)(nvjpegHandle_t handle, const unsigned char *data, size_t length, nvjpegJpegStream_t stream) {
  return parse((Jpeg *)stream, data, length);
}
SIMULATED(nvjpegJpegStreamGetJpegEncoding)(nvjpegJpegStream_t stream, nvjpegJpegEncoding_t *encoding) { return *encoding = ((Jpeg *)stream)->encoding, OK; }
SIMULATED(nvjpegJpegStreamGetFrameDimensions)(nvjpegJpegStream_t stream, unsigned *width, unsigned *height) {
  return *width = ((Jpeg *)stream)->width, *height = ((Jpeg *)stream)->height, OK;
}
SIMULATED(nvjpegJpegStreamGetComponentsNum)(nvjpegJpegStream_t stream, unsigned *number) { return *number = ((Jpeg *)stream)->components, OK; }
SIMULATED(nvjpegJpegStreamGetComponentDimensions)(nvjpegJpegStream_t stream, unsigned component, unsigned *width, unsigned *height) {
  Jpeg *jpeg = (Jpeg *)stream;
  unsigned h = 1, v = 1;
  for (unsigned i = 0; i < jpeg->components; i++) h = jpeg->h[i] > h ? jpeg->h[i] : h, v = jpeg->v[i] > v ? jpeg->v[i] : v;
  *width = (jpeg->width * jpeg->h[component] + h - 1) / h, *height = (jpeg->height * jpeg->v[component] + v - 1) / v;
  return OK;
}
SIMULATED(nvjpegJpegStreamGetSamplePrecision)(nvjpegJpegStream_t stream, unsigned *precision) { return *precision = ((Jpeg *)stream)->precision, OK; }
SIMULATED(nvjpegJpegStreamGetChromaSubsampling)(nvjpegJpegStream_t stream, nvjpegChromaSubsampling_t *css) { return *css = subsampling((Jpeg *)stream), OK; }
SIMULATED(nvjpegJpegStreamGetExifOrientation)(nvjpegJpegStream_t stream, nvjpegExifOrientation_t *orientation) { return *orientation = NVJPEG_ORIENTATION_UNKNOWN, OK; }
SIMULATED(nvjpegGetImageInfo)
(nvjpegHandle_t handle, const unsigned char *data, size_t length, int *components, nvjpegChromaSubsampling_t *css, int *widths, int *heights) {
  Jpeg jpeg = {0};
  nvjpegStatus_t status = parse(&jpeg, data, length);
  if (status) return status;
  *components = (int)jpeg.components, *css = subsampling(&jpeg);
  for (unsigned i = 0; i < NVJPEG_MAX_COMPONENT; i++) widths[i] = heights[i] = 0;
  for (unsigned i = 0; i < jpeg.components; i++)
    sim_nvjpegJpegStreamGetComponentDimensions((nvjpegJpegStream_t)&jpeg, i, (unsigned *)&widths[i], (unsigned *)&heights[i]);
  return OK;
}

/* ---- Which decoder takes an image: 0 is yes ---- */

static int engine_takes(const Jpeg *jpeg) {
  return jpeg->encoding == NVJPEG_ENCODING_BASELINE_DCT && jpeg->precision == 8 && jpeg->components != 2 && jpeg->components != 4 &&
         subsampling(jpeg) != NVJPEG_CSS_UNKNOWN;
}
SIMULATED(nvjpegDecodeBatchedSupportedEx)(nvjpegHandle_t handle, nvjpegJpegStream_t stream, nvjpegDecodeParams_t params, int *no) {
  return *no = !engine_takes((Jpeg *)stream), OK;
}
SIMULATED(nvjpegDecodeBatchedSupported)(nvjpegHandle_t handle, nvjpegJpegStream_t stream, int *no) { return *no = !engine_takes((Jpeg *)stream), OK; }
SIMULATED(nvjpegDecoderJpegSupported)(nvjpegJpegDecoder_t decoder, nvjpegJpegStream_t stream, nvjpegDecodeParams_t params, int *no) {
  return *no = ((Jpeg *)stream)->precision != 8 || ((Jpeg *)stream)->encoding > 0xC2, OK;
}

/* ---- Decoding ---- */

/* libjpeg in a scope of its own: torchvision and Pillow bring others into this process, whose functions have the same names. */
#define LIBJPEG_OF(version) "libjpeg.so." #version
#define LIBJPEG(version) LIBJPEG_OF(version)
#if JPEG_LIB_VERSION == 80
#define VERSION_IN_NAME 8
#else
#define VERSION_IN_NAME 62
#endif

static struct {
  struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
  void (*create)(j_decompress_ptr, int, size_t);
  void (*mem_src)(j_decompress_ptr, const unsigned char *, unsigned long);
  int (*read_header)(j_decompress_ptr, boolean);
  boolean (*start)(j_decompress_ptr);
  JDIMENSION (*read_scanlines)(j_decompress_ptr, JSAMPARRAY, JDIMENSION);
  boolean (*finish)(j_decompress_ptr);
  void (*destroy)(j_decompress_ptr);
} libjpeg;

__attribute__((constructor)) static void load_libjpeg(void) {
  void *library = dlopen(LIBJPEG(VERSION_IN_NAME), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!library) {
    fprintf(stderr, "simulated GPU: no %s; the package libjpeg62-turbo brings it\n", LIBJPEG(VERSION_IN_NAME));
    exit(1);
  }
  libjpeg.std_error = dlsym(library, "jpeg_std_error"), libjpeg.create = dlsym(library, "jpeg_CreateDecompress");
  libjpeg.mem_src = dlsym(library, "jpeg_mem_src"), libjpeg.read_header = dlsym(library, "jpeg_read_header");
  libjpeg.start = dlsym(library, "jpeg_start_decompress"), libjpeg.read_scanlines = dlsym(library, "jpeg_read_scanlines");
  libjpeg.finish = dlsym(library, "jpeg_finish_decompress"), libjpeg.destroy = dlsym(library, "jpeg_destroy_decompress");
}

typedef struct {
  struct jpeg_error_mgr base;
  jmp_buf out;
} Errors;

static void give_up(j_common_ptr jpeg) { longjmp(((Errors *)jpeg->err)->out, 1); }
/* A warning, such as of a scan that ends early: like nvJPEG on an H100, it delivers what is there. */
static void go_on(j_common_ptr jpeg, int level) {}

static void cmyk_to_rgb(unsigned char *row, int width, int inverted) {
  for (int x = 0; x < width; x++) {
    unsigned k = inverted ? row[4 * x + 3] : 255u - row[4 * x + 3];
    for (int c = 0; c < 3; c++) row[3 * x + c] = (unsigned char)((inverted ? row[4 * x + c] : 255u - row[4 * x + c]) * k / 255);
  }
}

/* All of it, and the region is cut out of it, which is what nvJPEG says that its regions are. */
static nvjpegStatus_t decode(const Jpeg *jpeg, const Params *params, int fancy, Decoded *decoded) {
  struct jpeg_decompress_struct info;
  Errors errors;
  unsigned char *volatile pixels = NULL, *volatile row = NULL;
  int x = params->width ? params->x : 0, y = params->width ? params->y : 0;
  int width = params->width ? params->width : (int)jpeg->width, height = params->width ? params->height : (int)jpeg->height;
  if (x < 0 || y < 0 || x + width > (int)jpeg->width || y + height > (int)jpeg->height) return NVJPEG_STATUS_INVALID_PARAMETER;

  info.err = libjpeg.std_error(&errors.base);
  errors.base.error_exit = give_up, errors.base.emit_message = go_on;
  libjpeg.create(&info, JPEG_LIB_VERSION, sizeof info);
  volatile int channels = 0, done = 0; /* of `height` */
  if (setjmp(errors.out)) {
    libjpeg.destroy(&info);
    free(row);
    if (!pixels) return NVJPEG_STATUS_BAD_JPEG;
    /* In the scan it is no error for nvJPEG either: an H100 delivers a JPEG that has another one's start there. What follows is gray. */
    size_t line = (size_t)width * (size_t)channels;
    memset(pixels + (size_t)done * line, 128, (size_t)(height - done) * line);
    free(decoded->pixels);
    *decoded = (Decoded){pixels, width, height, channels, params->format};
    return OK;
  }
  libjpeg.mem_src(&info, (unsigned char *)jpeg->data, jpeg->length);
  libjpeg.read_header(&info, TRUE);
  int gray = params->format == NVJPEG_OUTPUT_Y || (params->format == NVJPEG_OUTPUT_UNCHANGED && jpeg->components == 1);
  if (jpeg->components == 3) info.jpeg_color_space = JCS_YCbCr; /* whatever the file says: seen on an H100 */
  info.out_color_space = jpeg->components == 4 ? JCS_CMYK : gray ? JCS_GRAYSCALE : params->format == NVJPEG_OUTPUT_UNCHANGED ? JCS_YCbCr : JCS_RGB;
  info.do_fancy_upsampling = fancy;
  info.dct_method = JDCT_ISLOW;
  libjpeg.start(&info);

  channels = gray ? 1 : 3;
  pixels = malloc((size_t)width * (size_t)height * (size_t)channels);
  row = malloc((size_t)info.output_width * (size_t)info.output_components);
  while (info.output_scanline < info.output_height) {
    int line = (int)info.output_scanline - y;
    JSAMPROW rows[1] = {row};
    libjpeg.read_scanlines(&info, rows, 1);
    if (jpeg->components == 4) cmyk_to_rgb(row, (int)info.output_width, info.saw_Adobe_marker);
    if (line >= 0 && line < height) {
      memcpy(pixels + (size_t)line * (size_t)(width * channels), row + x * channels, (size_t)(width * channels));
      done = line + 1;
    }
  }
  libjpeg.finish(&info);
  libjpeg.destroy(&info);
  free(row);
  free(decoded->pixels);
  *decoded = (Decoded){pixels, width, height, channels, params->format};
  return OK;
}

static nvjpegStatus_t deliver(Decoded *decoded, const nvjpegImage_t *to, cudaStream_t handle) {
  Stream *stream = stream_named(handle);
  size_t width = (size_t)decoded->width, height = (size_t)decoded->height, channels = (size_t)decoded->channels;
  int bgr = decoded->format == NVJPEG_OUTPUT_BGR || decoded->format == NVJPEG_OUTPUT_BGRI;
  if (bgr)
    for (size_t i = 0; i < width * height; i++) {
      unsigned char first = decoded->pixels[3 * i];
      decoded->pixels[3 * i] = decoded->pixels[3 * i + 2], decoded->pixels[3 * i + 2] = first;
    }

  if (decoded->format == NVJPEG_OUTPUT_RGBI || decoded->format == NVJPEG_OUTPUT_BGRI || channels == 1)
    queue_copy_2d(stream, to->channel[0], to->pitch[0], decoded->pixels, width * channels, width * channels, height);
  else {
    unsigned char *plane = malloc(width * height);
    for (size_t channel = 0; channel < channels; channel++) {
      for (size_t i = 0; i < width * height; i++) plane[i] = decoded->pixels[channels * i + channel];
      queue_copy_2d(stream, to->channel[channel], to->pitch[channel], plane, width, width, height);
    }
    free(plane);
  }
  free(decoded->pixels);
  decoded->pixels = NULL;
  return OK;
}

/* ---- With SIMULATED_GPU_TIMES a decoder sleeps for as long as a device would take, and makes no pixels ---- */

static int is_timed(void) {
  static int found = -1;
  if (found < 0) found = getenv("SIMULATED_GPU_TIMES") != NULL;
  return found;
}

/* The times are those of 500 x 375 pixels, the most frequent size in ImageNet. */
static double usual_images(const Jpeg *jpeg) { return jpeg->width * jpeg->height / 187500.0; }

static nvjpegStatus_t sleep_us(double us) {
  struct timespec left = {(time_t)(us / 1e6), (long)(us * 1e3) % 1000000000L};
  return nanosleep(&left, NULL), OK;
}

/* In the caller's thread, as nvJPEG does it. A batch of several subsamplings is slower (docs/gpu-path.md). */
static nvjpegStatus_t sleep_for_batch(int engine, int batch, const unsigned char *const *data, const size_t *lengths) {
  double images = 0;
  int kinds = 0;
  for (int i = 0; i < batch; i++) {
    Jpeg jpeg = {0};
    nvjpegStatus_t status = parse(&jpeg, data[i], lengths[i]);
    if (status) return status;
    images += usual_images(&jpeg), kinds |= 1 << (subsampling(&jpeg) + 1);
  }
  return sleep_us(images * duration(!engine ? "cuda" : kinds & (kinds - 1) ? "mixed" : "engine"));
}

/* One image, in three steps: the CUDA decoder. */
SIMULATED(nvjpegDecodeJpegHost)
(nvjpegHandle_t handle, nvjpegJpegDecoder_t decoder, nvjpegJpegState_t state, nvjpegDecodeParams_t params, nvjpegJpegStream_t stream) {
  if (is_timed()) return sleep_us(usual_images((Jpeg *)stream) * duration("cuda"));
  return decode((Jpeg *)stream, (Params *)params, ((Handle *)handle)->fancy, &((State *)state)->decoded);
}
SIMULATED(nvjpegDecodeJpegTransferToDevice)
(nvjpegHandle_t handle, nvjpegJpegDecoder_t decoder, nvjpegJpegState_t state, nvjpegJpegStream_t jpeg, cudaStream_t stream) { return OK; }
SIMULATED(nvjpegDecodeJpegDevice)
(nvjpegHandle_t handle, nvjpegJpegDecoder_t decoder, nvjpegJpegState_t state, nvjpegImage_t *to, cudaStream_t stream) {
  State *each = (State *)state;
  if (!is_timed() && !each->decoded.pixels) return NVJPEG_STATUS_INVALID_PARAMETER;
  count_one(JPEG_CUDA, 1);
  if (is_timed()) return OK;
  return deliver(&each->decoded, to, stream);
}
SIMULATED(nvjpegDecodeJpeg)
(nvjpegHandle_t handle, nvjpegJpegDecoder_t decoder, nvjpegJpegState_t state, nvjpegJpegStream_t jpeg, nvjpegImage_t *to,
 nvjpegDecodeParams_t params, cudaStream_t stream) {
  nvjpegStatus_t status = sim_nvjpegDecodeJpegHost(handle, decoder, state, params, jpeg);
  return status ? status : sim_nvjpegDecodeJpegDevice(handle, decoder, state, to, stream);
}

/* Many at once: the engine, or the CUDA decoder where the handle is not of the engine's backend. */
SIMULATED(nvjpegDecodeBatchedInitialize)(nvjpegHandle_t handle, nvjpegJpegState_t state, int batch, int threads, nvjpegOutputFormat_t format) {
  ((State *)state)->format = format, ((State *)state)->batch = batch;
  return OK;
}
SIMULATED(nvjpegDecodeBatchedPreAllocate)
(nvjpegHandle_t handle, nvjpegJpegState_t state, int batch, int width, int height, nvjpegChromaSubsampling_t css, nvjpegOutputFormat_t format) {
  return width < 1 || width > 65535 || height < 1 || height > 65535 ? NVJPEG_STATUS_INVALID_PARAMETER : OK;
}
SIMULATED(nvjpegDecodeBatchedEx)
(nvjpegHandle_t handle, nvjpegJpegState_t state, const unsigned char *const *data, const size_t *lengths, nvjpegImage_t *to,
 nvjpegDecodeParams_t *params, cudaStream_t stream) {
  State *each = (State *)state;
  count_one(((Handle *)handle)->engine ? JPEG_ENGINE : JPEG_CUDA, each->batch);
  if (is_timed()) return sleep_for_batch(((Handle *)handle)->engine, each->batch, data, lengths);
  for (int i = 0; i < each->batch; i++) {
    Jpeg jpeg = {0};
    Decoded decoded = {0};
    Params own = params && params[i] ? *(Params *)params[i] : (Params){0};
    own.format = each->format;
    nvjpegStatus_t status = parse(&jpeg, data[i], lengths[i]);
    if (!status) status = decode(&jpeg, &own, ((Handle *)handle)->fancy, &decoded);
    if (status) return status;
    /* Seen on an H100: of such a gray image the engine writes nothing, and reports success. */
    if (((Handle *)handle)->engine && jpeg.components == 1 && (jpeg.h[0] != 1 || jpeg.v[0] != 1))
      free(decoded.pixels);
    else
      deliver(&decoded, &to[i], stream);
  }
  return OK;
}
SIMULATED(nvjpegDecodeBatched)
(nvjpegHandle_t handle, nvjpegJpegState_t state, const unsigned char *const *data, const size_t *lengths, nvjpegImage_t *to, cudaStream_t stream) {
  return sim_nvjpegDecodeBatchedEx(handle, state, data, lengths, to, NULL, stream);
}
