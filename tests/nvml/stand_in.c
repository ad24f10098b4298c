/* A stand-in for libnvidia-ml.so.1: it answers from the text file that STAND_IN_NVML_STATE names,
 * read anew at every call. Whoever loads it can tell by the symbol orch_stand_in. One thread only.
 *
 *   driver VERSION
 *   error FUNCTION CODE [UUID]     that call is refused (of that device, or always)
 *   hang FUNCTION [UUID]           that call never returns
 *   die FUNCTION [UUID]            that call ends the process
 *   print FUNCTION [UUID]          that call prints 4,000 bytes to stdout
 *   gpu UUID                       a GPU; what follows is said of it
 *   instance UUID NUMBER           a MIG instance of the GPU above; what follows is said of it
 *     name TEXT
 *     lost                         fallen off the bus
 *     total|used|reserved|utilization|mig|remap_pending|remap_failed|retired_pending|ecc|
 *       persistence|power|temperature|events|minor NUMBER      not said: not supported
 *     process compute|graphics|mps PID BYTES|-
 *     xid SERIAL CODE [INSTANCE]   an error; serials grow
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMED_OUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25 };
enum { XID_EVENTS = 8, MOST = 64, TEXT = 96, MOST_INSTANCES = 7 };
#define NO_INSTANCE 0xFFFFFFFFu
#define NO_MEMORY 0xFFFFFFFFFFFFFFFFull

enum value { TOTAL, USED, RESERVED, UTILIZATION, MIG, REMAP_PENDING, REMAP_FAILED, RETIRED_PENDING,
             ECC, PERSISTENCE, POWER, TEMPERATURE, EVENTS, MINOR, VALUES };
static const char *const value_names[VALUES] = {
    "total", "used", "reserved", "utilization", "mig", "remap_pending", "remap_failed",
    "retired_pending", "ecc", "persistence", "power", "temperature", "events", "minor"};

struct process { char use[12]; unsigned pid; unsigned long long memory; };
struct xid { unsigned long long serial, code; unsigned instance; };
struct device {
    char uuid[TEXT], name[TEXT];
    int board; /* the number of the device this one is cut from, or -1 */
    unsigned number;
    int lost, known[VALUES], processes, xids;
    unsigned long long values[VALUES];
    struct process process[MOST];
    struct xid xid[MOST];
};
struct fault { char kind[TEXT], function[TEXT], uuid[TEXT]; int code; };
struct handle { char uuid[TEXT]; };
struct event_set { unsigned long long seen; int boards; struct handle *board[MOST]; };
struct event { struct handle *device; unsigned long long type, data; unsigned gi, ci; };
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
struct process_info { unsigned pid; unsigned long long memory; unsigned gi, ci; };

const int orch_stand_in = 1;

static char driver[TEXT];
static struct device device[MOST];
static struct fault fault[MOST];
static struct handle handle[MOST * 4];
static int devices, faults, handles;

static void read_property(struct device *of, const char *key, const char *rest) {
    struct process *process = &of->process[of->processes];
    struct xid *xid = &of->xid[of->xids];
    char memory[TEXT];
    if (!strcmp(key, "name")) {
        snprintf(of->name, TEXT, "%s", rest);
    } else if (!strcmp(key, "lost")) {
        of->lost = 1;
    } else if (!strcmp(key, "process") && of->processes < MOST &&
               sscanf(rest, "%11s %u %95s", process->use, &process->pid, memory) == 3) {
        process->memory = memory[0] == '-' ? NO_MEMORY : strtoull(memory, NULL, 10);
        of->processes++;
    } else if (!strcmp(key, "xid") && of->xids < MOST) {
        xid->instance = NO_INSTANCE;
        of->xids += sscanf(rest, "%llu %llu %u", &xid->serial, &xid->code, &xid->instance) >= 2;
    }
    for (int value = 0; value < VALUES; value++) {
        if (!strcmp(key, value_names[value])) {
            of->known[value] = 1;
            of->values[value] = strtoull(rest, NULL, 10);
        }
    }
}

static void read_line(const char *line) {
    char key[TEXT] = "", first[TEXT] = "", second[TEXT] = "", third[TEXT] = "";
    int start = 0;
    sscanf(line, "%95s %n", key, &start);
    sscanf(line + start, "%95s %95s %95s", first, second, third);
    int part = !strcmp(key, "instance");
    if (!strcmp(key, "driver")) {
        snprintf(driver, TEXT, "%s", first);
    } else if ((!strcmp(key, "gpu") || part) && devices < MOST) {
        int board = devices;
        while (part && device[--board].board >= 0) {}
        snprintf(device[devices].uuid, TEXT, "%s", first);
        device[devices].board = part ? board : -1;
        device[devices++].number = (unsigned)atoi(second);
    } else if (!strcmp(key, "error") && faults < MOST) {
        fault[faults].code = atoi(second);
        snprintf(fault[faults].kind, TEXT, "%s", key);
        snprintf(fault[faults].function, TEXT, "%s", first);
        snprintf(fault[faults++].uuid, TEXT, "%s", third);
    } else if ((!strcmp(key, "hang") || !strcmp(key, "die") || !strcmp(key, "print")) &&
               faults < MOST) {
        snprintf(fault[faults].kind, TEXT, "%s", key);
        snprintf(fault[faults].function, TEXT, "%s", first);
        snprintf(fault[faults++].uuid, TEXT, "%s", second);
    } else if (devices > 0) {
        read_property(&device[devices - 1], key, line + start);
    }
}

static int read_state(void) {
    const char *path = getenv("STAND_IN_NVML_STATE");
    FILE *file = path == NULL ? NULL : fopen(path, "r");
    char line[512];
    if (file == NULL) return DRIVER_NOT_LOADED;
    memset(device, 0, sizeof device);
    memset(fault, 0, sizeof fault);
    devices = faults = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        read_line(line);
    }
    fclose(file);
    return SUCCESS;
}

static int misbehave(const char *function, const char *uuid) {
    for (int i = 0; i < faults; i++) {
        if (strcmp(fault[i].function, function)) continue;
        if (fault[i].uuid[0] && strcmp(fault[i].uuid, uuid)) continue;
        if (!strcmp(fault[i].kind, "die")) _exit(3);
        if (!strcmp(fault[i].kind, "hang")) for (;;) pause();
        if (!strcmp(fault[i].kind, "print")) {
            for (int line = 0; line < 200; line++) puts("the stand-in prints");
            fflush(stdout);
        }
        if (fault[i].code != SUCCESS) return fault[i].code;
    }
    return SUCCESS;
}

/* Read the state and find the device; it must not be lost. */
static int look(const char *function, const struct handle *of, struct device **found) {
    int result = read_state();
    if (result == SUCCESS) result = misbehave(function, of == NULL ? "" : of->uuid);
    if (result != SUCCESS || of == NULL) return result;
    for (int i = 0; i < devices; i++) {
        if (strcmp(device[i].uuid, of->uuid)) continue;
        *found = &device[i];
        int board = device[i].board;
        return device[i].lost || (board >= 0 && device[board].lost) ? GPU_IS_LOST : SUCCESS;
    }
    return GPU_IS_LOST;
}

static int tell(const char *function, const struct handle *of, enum value value, unsigned *out) {
    struct device *found = NULL;
    int result = look(function, of, &found);
    if (result != SUCCESS) return result;
    if (!found->known[value]) return NOT_SUPPORTED;
    *out = (unsigned)found->values[value];
    return SUCCESS;
}

static struct handle *handle_of(const char *uuid) {
    int i = 0;
    while (i < handles && strcmp(handle[i].uuid, uuid)) i++;
    if (i == handles) snprintf(handle[handles++].uuid, TEXT, "%s", uuid);
    return &handle[i];
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return look(__func__, NULL, NULL);
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    static char text[TEXT];
    snprintf(text, TEXT, "error %d of the stand-in", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned room) {
    int result = look(__func__, NULL, NULL);
    if (result == SUCCESS) snprintf(out, room, "%s", driver);
    return result;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    int result = look(__func__, NULL, NULL);
    *out = 0;
    for (int i = 0; i < devices; i++) *out += device[i].board < 0;
    return result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct handle **out) {
    int result = look(__func__, NULL, NULL);
    if (result != SUCCESS) return result;
    for (int i = 0; i < devices; i++) {
        if (device[i].board >= 0 || index-- > 0) continue;
        *out = handle_of(device[i].uuid);
        return device[i].lost ? GPU_IS_LOST : misbehave(__func__, device[i].uuid);
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **out) {
    struct handle wanted;
    struct device *found = NULL;
    snprintf(wanted.uuid, TEXT, "%s", uuid);
    int result = look(__func__, &wanted, &found);
    if (result == SUCCESS) *out = handle_of(uuid);
    int known = 0;
    for (int i = 0; i < devices; i++) known |= !strcmp(device[i].uuid, uuid);
    return result == GPU_IS_LOST && !known ? NOT_FOUND : result;
}

int nvmlDeviceGetUUID(struct handle *of, char *out, unsigned room) {
    struct device *found = NULL;
    int result = look(__func__, of, &found);
    if (result == SUCCESS) snprintf(out, room, "%s", found->uuid);
    return result;
}

int nvmlDeviceGetName(struct handle *of, char *out, unsigned room) {
    struct device *found = NULL;
    int result = look(__func__, of, &found);
    if (result == SUCCESS) snprintf(out, room, "%s", found->name);
    return result;
}

int nvmlDeviceGetMemoryInfo_v2(struct handle *of, struct memory *out) {
    struct device *found = NULL;
    int result = look(__func__, of, &found);
    if (result != SUCCESS) return result;
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    if (!found->known[USED]) return NOT_SUPPORTED;
    out->total = found->values[TOTAL];
    out->reserved = found->values[RESERVED];
    out->used = found->values[USED];
    out->free = out->total - out->reserved - out->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(struct handle *of, unsigned *out) {
    out[1] = 0;
    return tell(__func__, of, UTILIZATION, out);
}

static int list(const char *function, const struct handle *of, const char *use, unsigned *room,
                struct process_info *out) {
    struct device *found = NULL;
    unsigned count = 0, space = *room;
    int result = look(function, of, &found);
    if (result != SUCCESS) return result;
    for (int i = 0; i < found->processes; i++) {
        if (strcmp(found->process[i].use, use)) continue;
        if (count < space) {
            out[count].pid = found->process[i].pid;
            out[count].memory = found->process[i].memory;
            out[count].gi = out[count].ci = NO_INSTANCE;
        }
        count++;
    }
    *room = count;
    return count > space ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct handle *of, unsigned *room, void *out) {
    return list(__func__, of, "compute", room, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct handle *of, unsigned *room, void *out) {
    return list(__func__, of, "graphics", room, out);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct handle *of, unsigned *room, void *out) {
    return list(__func__, of, "mps", room, out);
}

int nvmlDeviceGetMigMode(struct handle *of, unsigned *current, unsigned *pending) {
    int result = tell(__func__, of, MIG, current);
    *pending = *current;
    return result;
}

int nvmlDeviceGetMaxMigDeviceCount(struct handle *of, unsigned *out) {
    struct device *found = NULL;
    *out = MOST_INSTANCES;
    return look(__func__, of, &found);
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *of, unsigned index, struct handle **out) {
    struct device *found = NULL;
    int result = look(__func__, of, &found);
    if (result != SUCCESS) return result;
    for (int i = 0; i < devices; i++) {
        if (device[i].board != found - device || index-- > 0) continue;
        *out = handle_of(device[i].uuid);
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct handle *of, struct handle **out) {
    struct device *found = NULL;
    int result = look(__func__, of, &found);
    if (result != SUCCESS) return result;
    if (found->board < 0) return INVALID_ARGUMENT;
    *out = handle_of(device[found->board].uuid);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(struct handle *of, unsigned *out) {
    struct device *found = NULL;
    int result = look(__func__, of, &found);
    if (result == SUCCESS) *out = found->number;
    return result;
}

int nvmlDeviceGetRemappedRows(struct handle *of, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    *corrected = *uncorrected = *failed = 0;
    tell(__func__, of, REMAP_FAILED, failed);
    return tell(__func__, of, REMAP_PENDING, pending);
}

int nvmlDeviceGetRetiredPagesPendingStatus(struct handle *of, unsigned *out) {
    return tell(__func__, of, RETIRED_PENDING, out);
}

int nvmlDeviceGetTotalEccErrors(struct handle *of, int type, int counter, unsigned long long *out) {
    unsigned count = 0;
    int result = tell(__func__, of, ECC, &count);
    *out = type == 1 && counter == 0 ? count : 0; /* uncorrected, since the driver was loaded */
    return result;
}

int nvmlDeviceGetPersistenceMode(struct handle *of, unsigned *out) {
    return tell(__func__, of, PERSISTENCE, out);
}

int nvmlDeviceGetMinorNumber(struct handle *of, unsigned *out) {
    return tell(__func__, of, MINOR, out);
}

int nvmlDeviceGetPowerUsage(struct handle *of, unsigned *out) {
    return tell(__func__, of, POWER, out);
}

int nvmlDeviceGetTemperature(struct handle *of, int sensor, unsigned *out) {
    (void)sensor;
    return tell(__func__, of, TEMPERATURE, out);
}

int nvmlEventSetCreate(struct event_set **out) {
    int result = look(__func__, NULL, NULL);
    if (result == SUCCESS) *out = calloc(1, sizeof **out);
    return result;
}

int nvmlEventSetFree(struct event_set *set) {
    free(set);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(struct handle *of, unsigned long long *out) {
    unsigned supported = 0;
    int result = tell(__func__, of, EVENTS, &supported);
    *out = supported ? XID_EVENTS : 0;
    return result;
}

int nvmlDeviceRegisterEvents(struct handle *of, unsigned long long types, struct event_set *set) {
    struct device *found = NULL;
    int result = look(__func__, of, &found);
    if (result != SUCCESS) return result;
    if (!found->known[EVENTS] || !(types & XID_EVENTS)) return NOT_SUPPORTED;
    for (int i = 0; i < found->xids; i++) {
        if (found->xid[i].serial > set->seen) set->seen = found->xid[i].serial;
    }
    set->board[set->boards++] = of;
    return SUCCESS;
}

/* Give the oldest error that was not given yet. It never waits. */
int nvmlEventSetWait_v2(struct event_set *set, struct event *out, unsigned milliseconds) {
    int result = look(__func__, NULL, NULL), lost = 0;
    unsigned long long oldest = 0;
    (void)milliseconds;
    if (result != SUCCESS) return result;
    for (int b = 0; b < set->boards; b++) {
        for (int i = 0; i < devices; i++) {
            if (strcmp(device[i].uuid, set->board[b]->uuid)) continue;
            lost |= device[i].lost;
            for (int x = 0; x < device[i].xids; x++) {
                const struct xid *xid = &device[i].xid[x];
                if (xid->serial <= set->seen || (oldest && xid->serial > oldest)) continue;
                oldest = xid->serial;
                *out = (struct event){set->board[b], XID_EVENTS, xid->code, xid->instance,
                                      NO_INSTANCE};
            }
        }
    }
    if (!oldest) return lost ? GPU_IS_LOST : TIMED_OUT;
    set->seen = oldest;
    return SUCCESS;
}
