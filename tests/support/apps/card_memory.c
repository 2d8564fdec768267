/* A stand-in for NVIDIA's management library: one card of 24 GB, its use in MB in the file $CARD_MEMORY. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct memory { unsigned long long total, free, used; };
static int card;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) { *device = &card; return number != 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = &card; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strncpy(name, "simulated 24 GB", length); return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) { return 3; }
int nvmlDeviceGetMemoryInfo(void *device, struct memory *found) {
    double used = 0;
    FILE *file = fopen(getenv("CARD_MEMORY"), "r");
    if (!file) return 1;
    if (fscanf(file, "%lf", &used) != 1) used = 0;
    fclose(file);
    found->total = 24000ULL << 20;
    found->used = (unsigned long long)(used * (1 << 20));
    found->free = found->total - found->used;
    return 0;
}
