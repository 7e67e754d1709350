/* A libcuda.so.1 that gives the CUDA runtime the answers of a machine: FAKE_DRIVER_VERSION (12040
   for CUDA 12.4), and what cuInit returns, FAKE_DRIVER_INIT (a CUresult). It has no devices. */
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);

static int answer(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value != NULL ? atoi(value) : otherwise;
}

int cuDriverGetVersion(int* version) {
  *version = answer("FAKE_DRIVER_VERSION", 13020);
  return 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return answer("FAKE_DRIVER_INIT", 100); /* CUDA_ERROR_NO_DEVICE */
}

static int not_supported(void) { return 801; /* CUDA_ERROR_NOT_SUPPORTED */ }

int cuGetProcAddress_v2(const char* symbol, Function* function, int version,
                        unsigned long long flags, int* found) {
  (void)version;
  (void)flags;
  (void)found;
  *function = (Function)not_supported;
  if (strcmp(symbol, "cuDriverGetVersion") == 0) *function = (Function)cuDriverGetVersion;
  if (strcmp(symbol, "cuInit") == 0) *function = (Function)cuInit;
  if (strcmp(symbol, "") == 0 || strcmp(symbol, "cuGetProcAddress") == 0) {
    *function = (Function)cuGetProcAddress_v2;
  }
  return 0;
}
