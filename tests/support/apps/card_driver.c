/* A stand-in for the driver's library of NVIDIA cards: one card, on which this process has a context. */
static int state = 0;
void spoil(int code) { state = code; }
int use(void) { return state; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &state; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxPushCurrent_v2(void *context) { return 0; }
int cuCtxPopCurrent_v2(void **context) { return 0; }
int cuCtxGetLimit(unsigned long *found, int limit) { return state; }
