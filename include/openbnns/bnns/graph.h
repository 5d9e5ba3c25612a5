/* Compile a model file, wrap it in a context, execute it. Inference only. Handles are small structs
 * passed by value; a handle whose data is NULL stands for failure. */
#ifndef OPENBNNS_BNNS_GRAPH_H
#define OPENBNNS_BNNS_GRAPH_H

#include "base.h"

#ifdef OBN_RENAMES
#define BNNSGraphCompileFromFile BNNSGraphCompileFromFile_v2
#define BNNSGraphGetInputNames BNNSGraphGetInputNames_v2
#define BNNSGraphGetOutputNames BNNSGraphGetOutputNames_v2
#define BNNSGraphContextDestroy BNNSGraphContextDestroy_v2
#define BNNSGraphContextSetDynamicShapes BNNSGraphContextSetDynamicShapes_v2
#define BNNSGraphContextSetBatchSize BNNSGraphContextSetBatchSize_v2
#define BNNSGraphContextExecute BNNSGraphContextExecute_v2
#define BNNSGraphContextGetWorkspaceSize BNNSGraphContextGetWorkspaceSize_v2
#define BNNSGraphContextSetWorkspaceAllocationCallback BNNSGraphContextSetWorkspaceAllocationCallback_v2
#define BNNSGraphContextSetOutputAllocationCallback BNNSGraphContextSetOutputAllocationCallback_v2
#endif

OBN_C_BEGIN

/* Severity of a message; the values combine to masks. The default mask is 14, all but Info. */
OBN_ENUM(BNNSGraphMessageLevel) {
    BNNSGraphMessageLevelInfo = 1,        /* progress */
    BNNSGraphMessageLevelUnsupported = 2, /* a feature is missing */
    BNNSGraphMessageLevelWarning = 4,     /* suspicious, work goes on */
    BNNSGraphMessageLevelError = 8,       /* the call fails */
};

/* Goal of graph compilation. */
OBN_ENUM(BNNSGraphOptimizationPreference) {
    BNNSGraphOptimizationPreferencePerformance = 0, /* fastest execution (default) */
    BNNSGraphOptimizationPreferenceIRSize = 1,      /* smallest compiled image */
};

/* Direction of a graph argument; InOut is used for state. */
OBN_ENUM(BNNSGraphArgumentIntent) {
    BNNSGraphArgumentIntentIn = 1,    /* read */
    BNNSGraphArgumentIntentOut = 2,   /* written */
    BNNSGraphArgumentIntentInOut = 3, /* both */
};

/* What the union of bnns_graph_argument_t holds when a graph is executed. */
OBN_ENUM(BNNSGraphArgumentType) {
    BNNSGraphArgumentTypePointer = 0, /* data_ptr (default) */
    BNNSGraphArgumentTypeTensor = 2,  /* tensor */
};

/* Compiled graph. The image can be written to disk and mapped again. Release data with free, or
 * with munmap when the graph was compiled to a file. */
typedef struct bnns_graph_t {
    void *data;  /* image, NULL after a failure */
    size_t size; /* bytes */
} bnns_graph_t;

/* State of an execution. The graph has to outlive it; one thread at a time. */
typedef struct bnns_graph_context_t {
    void *data;  /* state, NULL after a failure */
    size_t size; /* bytes */
} bnns_graph_context_t;

/* Options of a compilation. */
typedef struct bnns_graph_compile_options_t {
    void *data;  /* options */
    size_t size; /* bytes */
} bnns_graph_compile_options_t;

/* Shape of one argument. */
typedef struct bnns_graph_shape_t {
    size_t rank;     /* entries of shape; 0 = as the model says */
    uint64_t *shape; /* extents; 0 = as the model says, or not known; may be NULL */
} bnns_graph_shape_t;

/* One argument of an execution. BNNSGraphContextSetArgumentType tells which union member is
 * read. */
typedef struct bnns_graph_argument_t {
    OBN_EXTENSION union {
        BNNSTensor *tensor;                /* argument type Tensor */
        BNNSNDArrayDescriptor *descriptor; /* older form */
        void *data_ptr;                    /* argument type Pointer */
    };
    size_t data_ptr_size; /* bytes behind data_ptr */
} bnns_graph_argument_t;

/* Payload handed on to message callbacks. */
typedef struct bnns_user_message_data_t {
    size_t size; /* bytes */
    void *data;  /* payload; may be NULL */
} bnns_user_message_data_t;

/* Allocates when *memptr is NULL, else resizes; returns 0 on success. user_memory_context may be
 * NULL. */
typedef int (*bnns_graph_realloc_fn_t)(void *user_memory_context, size_t user_memory_context_size,
                                       void **memptr, size_t alignment, size_t size);

/* Frees everything allocated for that memory context. */
typedef void (*bnns_graph_free_all_fn_t)(void *user_memory_context,
                                         size_t user_memory_context_size);

/* Receives messages of a compilation. source_location and additional_logging_arguments may be
 * NULL. */
typedef void (*bnns_graph_compile_message_fn_t)(
    BNNSGraphMessageLevel msg_level, const char *error_msg, const char *source_location,
    bnns_user_message_data_t *additional_logging_arguments);

/* Receives messages of an execution. op_info and additional_logging_arguments may be NULL. */
typedef void (*bnns_graph_execute_message_fn_t)(
    BNNSGraphMessageLevel msg_level, const char *error_msg, const char *op_info,
    bnns_user_message_data_t *additional_logging_arguments);

/* New options, with data NULL on failure. */
OBN_API bnns_graph_compile_options_t BNNSGraphCompileOptionsMakeDefault(void);

/* Frees options. */
OBN_API void BNNSGraphCompileOptionsDestroy(bnns_graph_compile_options_t options);

/* Whether the graph runs on one thread; not by default. */
OBN_API void BNNSGraphCompileOptionsSetTargetSingleThread(bnns_graph_compile_options_t options,
                                                          bool value);

/* Reads it; false on failure. */
OBN_API bool BNNSGraphCompileOptionsGetTargetSingleThread(bnns_graph_compile_options_t options);

/* Whether the image contains debug information; not by default. */
OBN_API void BNNSGraphCompileOptionsSetGenerateDebugInfo(bnns_graph_compile_options_t options,
                                                         bool value);

/* Reads it; false on failure. */
OBN_API bool BNNSGraphCompileOptionsGetGenerateDebugInfo(bnns_graph_compile_options_t options);

/* Speed or size. */
OBN_API void BNNSGraphCompileOptionsSetOptimizationPreference(
    bnns_graph_compile_options_t options, BNNSGraphOptimizationPreference preference);

/* Reads it; Performance on failure. */
OBN_API BNNSGraphOptimizationPreference BNNSGraphCompileOptionsGetOptimizationPreference(
    bnns_graph_compile_options_t options);

/* Who receives the messages of the compilation. May be NULL: additional_logging_arguments. */
OBN_API void BNNSGraphCompileOptionsSetMessageLogCallback(
    bnns_graph_compile_options_t options, bnns_graph_compile_message_fn_t log_callback,
    bnns_user_message_data_t *additional_logging_arguments);

/* Which levels are reported. */
OBN_API void BNNSGraphCompileOptionsSetMessageLogMask(bnns_graph_compile_options_t options,
                                                      uint32_t log_level_mask);

/* File to compile to, made with mode 0600 and mapped read-only; NULL compiles to memory. May be
 * NULL: path. */
OBN_API void BNNSGraphCompileOptionsSetOutputPath(bnns_graph_compile_options_t options,
                                                  const char *path);

/* Reads it; NULL when there is none. */
OBN_API const char *BNNSGraphCompileOptionsGetOutputPath(bnns_graph_compile_options_t options);

/* Open file to compile to, truncated first, preferred over the path; -1 switches it off. */
OBN_API void BNNSGraphCompileOptionsSetOutputFD(bnns_graph_compile_options_t options, int fd);

/* Reads it; -1 when there is none. */
OBN_API int BNNSGraphCompileOptionsGetOutputFD(bnns_graph_compile_options_t options);

/* Compiles one function of a model, or all when function is NULL or empty. data is NULL on failure.
 * May be NULL: function. */
OBN_API bnns_graph_t BNNSGraphCompileFromFile(
    const char *filename, const char *function,
    bnns_graph_compile_options_t options) OBN_SYMBOL(BNNSGraphCompileFromFile_v2);

/* Number of inputs; SIZE_MAX on failure. function may be NULL when there is only one, here and
 * below. May be NULL: function. */
OBN_API size_t BNNSGraphGetInputCount(bnns_graph_t graph, const char *function);

/* Number of outputs; SIZE_MAX on failure. May be NULL: function. */
OBN_API size_t BNNSGraphGetOutputCount(bnns_graph_t graph, const char *function);

/* Number of inputs and outputs; SIZE_MAX on failure. May be NULL: function. */
OBN_API size_t BNNSGraphGetArgumentCount(bnns_graph_t graph, const char *function);

/* Number of functions; SIZE_MAX on failure. */
OBN_API size_t BNNSGraphGetFunctionCount(bnns_graph_t graph);

/* Stores up to input_names_count names, owned by the graph. Returns 0, or another value on failure.
 * May be NULL: function. */
OBN_API int BNNSGraphGetInputNames(bnns_graph_t graph, const char *function,
                                   size_t input_names_count,
                                   const char **input_names) OBN_SYMBOL(BNNSGraphGetInputNames_v2);

/* Stores up to output_names_count names, owned by the graph. Returns 0, or another value on
 * failure. May be NULL: function. */
OBN_API int BNNSGraphGetOutputNames(
    bnns_graph_t graph, const char *function, size_t output_names_count,
    const char **output_names) OBN_SYMBOL(BNNSGraphGetOutputNames_v2);

/* Stores up to argument_names_count names, outputs first, owned by the graph. Returns 0, or another
 * value on failure. May be NULL: function. */
OBN_API int BNNSGraphGetArgumentNames(bnns_graph_t graph, const char *function,
                                      size_t argument_names_count, const char **argument_names);

/* Stores up to function_name_count names, owned by the graph. Returns 0, or another value on
 * failure. */
OBN_API int BNNSGraphGetFunctionNames(bnns_graph_t graph, size_t function_name_count,
                                      const char **function_names);

/* Stores the direction of each argument, outputs first. Returns 0, or another value on failure. May
 * be NULL: function. */
OBN_API int BNNSGraphGetArgumentIntents(bnns_graph_t graph, const char *function,
                                        size_t argument_intents_count,
                                        BNNSGraphArgumentIntent *argument_intents);

/* Position of a named argument; SIZE_MAX on failure. May be NULL: function. */
OBN_API size_t BNNSGraphGetArgumentPosition(bnns_graph_t graph, const char *function,
                                            const char *argument);

/* Stores the interleave factors of each argument and their count; NULL and 0 for arguments without.
 * Returns 0, or another value on failure. May be NULL: function. */
OBN_API int BNNSGraphGetArgumentInterleaveFactors(bnns_graph_t graph, const char *function,
                                                  size_t argument_count,
                                                  const uint16_t **argument_interleave,
                                                  size_t *argument_interleave_counts);

/* Fills the strides the model expects for an argument whose shape is in tensor. Returns 0, or
 * another value on failure. May be NULL: function. */
OBN_API int BNNSGraphTensorFillStrides(bnns_graph_t graph, const char *function,
                                       const char *argument, BNNSTensor *tensor);

/* Context of a graph; data is NULL on failure. */
OBN_API bnns_graph_context_t BNNSGraphContextMake(bnns_graph_t graph);

/* Context that keeps state arguments in ring buffers, for models made for streaming. States that
 * are not listed start at zero. data is NULL on failure. May be NULL: function, initial_states. */
OBN_API bnns_graph_context_t BNNSGraphContextMakeStreaming(bnns_graph_t graph, const char *function,
                                                           size_t initial_states_count,
                                                           const BNNSTensor *initial_states);

/* Frees a context. */
OBN_API void BNNSGraphContextDestroy(
    bnns_graph_context_t context) OBN_SYMBOL(BNNSGraphContextDestroy_v2);

/* Sets the shapes of the arguments, outputs first; shapes of outputs are written back. Returns 0
 * when they are exact, 1 when they are upper bounds, 2 when they are not known before the run, a
 * negative value on failure. May be NULL: function. */
OBN_API int BNNSGraphContextSetDynamicShapes(
    bnns_graph_context_t context, const char *function, size_t shapes_count,
    bnns_graph_shape_t *shapes) OBN_SYMBOL(BNNSGraphContextSetDynamicShapes_v2);

/* Sets the batch size shared by all arguments. Returns 0, or another value on failure. May be NULL:
 * function. */
OBN_API int BNNSGraphContextSetBatchSize(
    bnns_graph_context_t context, const char *function,
    uint64_t batch_size) OBN_SYMBOL(BNNSGraphContextSetBatchSize_v2);

/* What arguments hold: pointers or tensors. Returns 0, or another value on failure. */
OBN_API int BNNSGraphContextSetArgumentType(bnns_graph_context_t context,
                                            BNNSGraphArgumentType argument_type);

/* Whether intermediate results are checked for NaN and infinity. */
OBN_API void BNNSGraphContextEnableNanAndInfChecks(bnns_graph_context_t context,
                                                   bool enable_check_for_nans_inf);

/* How far the next execution moves the streaming state. Returns 0, or another value on failure. */
OBN_API int BNNSGraphContextSetStreamingAdvanceCount(bnns_graph_context_t context,
                                                     size_t advance_count);

/* Runs a function. arguments lists outputs, then inputs. The workspace is aligned to a page.
 * Returns 0, or another value on failure. May be NULL: function, workspace. */
OBN_API int BNNSGraphContextExecute(bnns_graph_context_t context, const char *function,
                                    size_t argument_count, bnns_graph_argument_t *arguments,
                                    size_t workspace_size,
                                    char *workspace) OBN_SYMBOL(BNNSGraphContextExecute_v2);

/* Bytes of workspace for the shapes now set; SIZE_MAX on failure. May be NULL: function. */
OBN_API size_t BNNSGraphContextGetWorkspaceSize(
    bnns_graph_context_t context,
    const char *function) OBN_SYMBOL(BNNSGraphContextGetWorkspaceSize_v2);

/* Describes an argument, all but its data. Unknown extents are -1 unless
 * fill_known_dynamic_shapes asks for those set on the context. Returns 0, or another value on
 * failure. May be NULL: function. */
OBN_API int BNNSGraphContextGetTensor(bnns_graph_context_t context, const char *function,
                                      const char *argument, bool fill_known_dynamic_shapes,
                                      BNNSTensor *tensor);

/* Allocator of the workspace; realloc and free are both given or both NULL. Returns 0, or another
 * value on failure. May be NULL: realloc, free, user_memory_context. */
OBN_API int BNNSGraphContextSetWorkspaceAllocationCallback(
    bnns_graph_context_t context, bnns_graph_realloc_fn_t realloc, bnns_graph_free_all_fn_t free,
    size_t user_memory_context_size,
    void *user_memory_context) OBN_SYMBOL(BNNSGraphContextSetWorkspaceAllocationCallback_v2);

/* Allocator of outputs; realloc and free are both given or both NULL. Returns 0, or another value
 * on failure. May be NULL: realloc, free, user_memory_context. */
OBN_API int BNNSGraphContextSetOutputAllocationCallback(
    bnns_graph_context_t context, bnns_graph_realloc_fn_t realloc, bnns_graph_free_all_fn_t free,
    size_t user_memory_context_size,
    void *user_memory_context) OBN_SYMBOL(BNNSGraphContextSetOutputAllocationCallback_v2);

/* Who receives the messages of an execution. Returns 0, or another value on failure. May be NULL:
 * additional_logging_arguments. */
OBN_API int BNNSGraphContextSetMessageLogCallback(
    bnns_graph_context_t context, bnns_graph_execute_message_fn_t log_callback_fn,
    bnns_user_message_data_t *additional_logging_arguments);

/* Which levels are reported. Returns 0, or another value on failure. */
OBN_API int BNNSGraphContextSetMessageLogMask(bnns_graph_context_t context,
                                              uint32_t log_level_mask);

OBN_C_END

#endif
