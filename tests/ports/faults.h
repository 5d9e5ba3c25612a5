/* For allocations.c as faults.c: every allocation of every family fails once. Each RUN happens in children of
 * this process, in which the library has done nothing yet: the first without a fault, the next with the first
 * allocation failing, then the second … until there are no more. After the fault the same is done again
 * without one. A call that fails must say so, with a sentence, and leave what it would have written alone; what
 * comes after it must succeed; and as many blocks must be left as without a fault. */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

static atomic_int fail_at = -1, calls, live, is_armed;

static int may_allocate(void) {
    if (atomic_load(&is_armed) && atomic_fetch_add(&calls, 1) == atomic_load(&fail_at)) {
        errno = ENOMEM;
        return 0;
    }
    atomic_fetch_add(&live, 1);
    return 1;
}

extern void __libc_free(void *block);
void free(void *block) {
    if (block) atomic_fetch_sub(&live, 1);
    __libc_free(block);
}

static int complaints; /* of this child */
static void complain(const char *call, const char *what) {
    char text[300];
    const int length = snprintf(text, sizeof text, "%s, allocation %d fails: %s\n", call, atomic_load(&fail_at), what);
    if (write(2, text, (size_t)length) < 0) _exit(3);
    complaints++;
}

static uint64_t hash_outputs(void);

static uint64_t hash_before;
static void before(void) {
    obn_clear_error();
    hash_before = hash_outputs();
    atomic_store(&is_armed, 1);
}

static int after(const char *call, int status) {
    atomic_store(&is_armed, 0);
    if (status == 0) return 0;
    if (status != -1) complain(call, "the result is neither 0 nor -1");
    if (!strstr(obn_last_error(), "could not be had")) complain(call, "the sentence is not about memory");
    if (hash_outputs() != hash_before) complain(call, "outputs were touched");
    return status;
}

static void *after_making(const char *call, void *made) {
    atomic_store(&is_armed, 0);
    if (!made && !strstr(obn_last_error(), "could not be had") && !strstr(obn_last_error(), "room for another handle"))
        complain(call, "the sentence is not about memory");
    if (hash_outputs() != hash_before) complain(call, "outputs were touched");
    return made;
}

#define TRY(name, ...) (before(), after(#name, name(__VA_ARGS__)))
#define MAKE(name, ...) (before(), after_making(#name, name(__VA_ARGS__)))

#define BNNSFilterApplyBatch(...) TRY(BNNSFilterApplyBatch, __VA_ARGS__)
#define BNNSFilterApplyBackwardBatch(...) TRY(BNNSFilterApplyBackwardBatch, __VA_ARGS__)
#define BNNSFilterApplyTwoInputBatch(...) TRY(BNNSFilterApplyTwoInputBatch, __VA_ARGS__)
#define BNNSFilterApplyBackwardTwoInputBatch(...) TRY(BNNSFilterApplyBackwardTwoInputBatch, __VA_ARGS__)
#define BNNSPoolingFilterApplyBatch(...) TRY(BNNSPoolingFilterApplyBatch, __VA_ARGS__)
#define BNNSPoolingFilterApplyBackwardBatch(...) TRY(BNNSPoolingFilterApplyBackwardBatch, __VA_ARGS__)
#define BNNSOptimizerStep(...) TRY(BNNSOptimizerStep, __VA_ARGS__)
#define BNNSClipByValue(...) TRY(BNNSClipByValue, __VA_ARGS__)
#define BNNSClipByNorm(...) TRY(BNNSClipByNorm, __VA_ARGS__)
#define BNNSClipByGlobalNorm(...) TRY(BNNSClipByGlobalNorm, __VA_ARGS__)
#define BNNSComputeNorm(...) TRY(BNNSComputeNorm, __VA_ARGS__)
#define BNNSRandomFillUniformFloat(...) TRY(BNNSRandomFillUniformFloat, __VA_ARGS__)
#define BNNSRandomFillNormalFloat(...) TRY(BNNSRandomFillNormalFloat, __VA_ARGS__)
#define BNNSRandomFillCategoricalFloat(...) TRY(BNNSRandomFillCategoricalFloat, __VA_ARGS__)
#define BNNSLossFilterApplyBatch(...) TRY(BNNSLossFilterApplyBatch, __VA_ARGS__)
#define BNNSLossFilterApplyBackwardBatch(...) TRY(BNNSLossFilterApplyBackwardBatch, __VA_ARGS__)
#define BNNSNormalizationFilterApplyBatch(...) TRY(BNNSNormalizationFilterApplyBatch, __VA_ARGS__)
#define BNNSNormalizationFilterApplyBackwardBatch(...) TRY(BNNSNormalizationFilterApplyBackwardBatch, __VA_ARGS__)
#define BNNSArithmeticFilterApplyBatch(...) TRY(BNNSArithmeticFilterApplyBatch, __VA_ARGS__)
#define BNNSArithmeticFilterApplyBackwardBatch(...) TRY(BNNSArithmeticFilterApplyBackwardBatch, __VA_ARGS__)
#define BNNSMatMul(...) TRY(BNNSMatMul, __VA_ARGS__)
#define BNNSDirectApplyQuantizer(...) TRY(BNNSDirectApplyQuantizer, __VA_ARGS__)
#define BNNSFusedFilterApplyBatch(...) TRY(BNNSFusedFilterApplyBatch, __VA_ARGS__)
#define BNNSFusedFilterApplyBackwardBatch(...) TRY(BNNSFusedFilterApplyBackwardBatch, __VA_ARGS__)
#define BNNSFusedFilterApplyMultiInputBatch(...) TRY(BNNSFusedFilterApplyMultiInputBatch, __VA_ARGS__)
#define BNNSFusedFilterApplyBackwardMultiInputBatch(...) TRY(BNNSFusedFilterApplyBackwardMultiInputBatch, __VA_ARGS__)
#define BNNSApplyMultiheadAttention(...) TRY(BNNSApplyMultiheadAttention, __VA_ARGS__)
#define BNNSApplyMultiheadAttentionBackward(...) TRY(BNNSApplyMultiheadAttentionBackward, __VA_ARGS__)
#define BNNSFilterCreateLayerConvolution(...) MAKE(BNNSFilterCreateLayerConvolution, __VA_ARGS__)
#define BNNSFilterCreateLayerTransposedConvolution(...) MAKE(BNNSFilterCreateLayerTransposedConvolution, __VA_ARGS__)
#define BNNSFilterCreateLayerFullyConnected(...) MAKE(BNNSFilterCreateLayerFullyConnected, __VA_ARGS__)
#define BNNSFilterCreateLayerLoss(...) MAKE(BNNSFilterCreateLayerLoss, __VA_ARGS__)
#define BNNSFilterCreateLayerNormalization(...) MAKE(BNNSFilterCreateLayerNormalization, __VA_ARGS__)
#define BNNSFilterCreateLayerArithmetic(...) MAKE(BNNSFilterCreateLayerArithmetic, __VA_ARGS__)
#define BNNSFilterCreateLayerTensorContraction(...) MAKE(BNNSFilterCreateLayerTensorContraction, __VA_ARGS__)
#define BNNSFilterCreateLayerBroadcastMatMul(...) MAKE(BNNSFilterCreateLayerBroadcastMatMul, __VA_ARGS__)
#define BNNSFilterCreateFusedLayer(...) MAKE(BNNSFilterCreateFusedLayer, __VA_ARGS__)
#define BNNSFilterCreateLayerMultiheadAttention(...) MAKE(BNNSFilterCreateLayerMultiheadAttention, __VA_ARGS__)
#define BNNSFilterCreateLayerPooling(...) MAKE(BNNSFilterCreateLayerPooling, __VA_ARGS__)
#define BNNSFilterCreateLayerActivation(...) MAKE(BNNSFilterCreateLayerActivation, __VA_ARGS__)
#define BNNSCreateRandomGeneratorWithSeed(...) MAKE(BNNSCreateRandomGeneratorWithSeed, __VA_ARGS__)

/* What a child found: shared with it. */
typedef struct {
    int live, complaints, failed, is_reached;
} Report;

static Report *start_reports(void) {
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer); /* which would be an allocation */
    return mmap(NULL, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static int is_child(void) {
    fflush(stdout);
    return fork() == 0;
}

/* 0 when the child came to its end. */
static int wait_for(void) {
    int status = 0;
    return wait(&status) < 0 || status != 0;
}

#define STEPS(count) 1
static int runs;
/* Every fourth with two threads, too: then some blocks are the workers', who may come to be or not, and are not
 * counted. */
#define RUN(run)                                                                                              \
    for (int threads = 1, most = runs++ % 4 == 0 ? 2 : 1; threads <= most; threads++)                         \
        for (int n = -1, is_over = 0, left = 0; !is_over; n++) {                                              \
            memset(report, 0, sizeof *report);                                                                \
            if (is_child()) {                                                                                 \
                obn_set_num_threads((size_t)threads);                                                         \
                fail_at = n;                                                                                  \
                const int failed = run;                                                                       \
                report->is_reached = calls > n;                                                               \
                fail_at = -1;                                                                                 \
                report->failed = (n < 0 || !report->is_reached ? failed : 0) + run;                           \
                report->live = live;                                                                          \
                report->complaints = complaints;                                                              \
                _exit(0);                                                                                     \
            }                                                                                                 \
            const int is_bad = wait_for();                                                                    \
            if (n < 0) left = report->live;                                                                   \
            is_over = is_bad || (n >= 0 && !report->is_reached);                                              \
            if (is_bad || report->complaints || report->failed || (threads == 1 && report->live != left)) {   \
                printf("%s, %d threads, allocation %d fails: %s; %d complaints, %d of the others failed, %d " \
                       "blocks left instead of %d\n", #run, threads, n, is_bad ? "crash" : "came back",       \
                       report->complaints, report->failed, report->live, left);                               \
                failures++;                                                                                   \
            }                                                                                                 \
            if (is_over) printf("%s, %d threads: %d\n", #run, threads, n);                                    \
        }
