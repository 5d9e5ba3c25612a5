// Functions of the interface that are declared and exported but not built yet. Each fails the way the interface says
// it fails and leaves the sentence "not implemented". A function that gets built moves out of here, and its name from
// the first list below to the second.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/status.h"
#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

// Both lists are sorted.
constexpr std::string_view unbuilt[] = {
    "BNNSBandPart",
    "BNNSCompareTensor",
    "BNNSComputeLSTMTrainingCacheCapacity",
    "BNNSCopy",
    "BNNSCreateNearestNeighbors",
    "BNNSCropResize",
    "BNNSCropResizeBackward",
    "BNNSDestroyNearestNeighbors",
    "BNNSDirectApplyInTopK",
    "BNNSDirectApplyLSTMBatchBackward",
    "BNNSDirectApplyLSTMBatchTrainingCaching",
    "BNNSDirectApplyReduction",
    "BNNSDirectApplyTopK",
    "BNNSFilterCreateLayerDropout",
    "BNNSFilterCreateLayerEmbedding",
    "BNNSFilterCreateLayerPadding",
    "BNNSFilterCreateLayerPermute",
    "BNNSFilterCreateLayerReduction",
    "BNNSFilterCreateLayerResize",
    "BNNSGather",
    "BNNSGatherND",
    "BNNSGraphCompileFromFile",
    "BNNSGraphCompileOptionsDestroy",
    "BNNSGraphCompileOptionsGetGenerateDebugInfo",
    "BNNSGraphCompileOptionsGetOptimizationPreference",
    "BNNSGraphCompileOptionsGetOutputFD",
    "BNNSGraphCompileOptionsGetOutputPath",
    "BNNSGraphCompileOptionsGetTargetSingleThread",
    "BNNSGraphCompileOptionsMakeDefault",
    "BNNSGraphCompileOptionsSetGenerateDebugInfo",
    "BNNSGraphCompileOptionsSetMessageLogCallback",
    "BNNSGraphCompileOptionsSetMessageLogMask",
    "BNNSGraphCompileOptionsSetOptimizationPreference",
    "BNNSGraphCompileOptionsSetOutputFD",
    "BNNSGraphCompileOptionsSetOutputPath",
    "BNNSGraphCompileOptionsSetTargetSingleThread",
    "BNNSGraphContextDestroy",
    "BNNSGraphContextEnableNanAndInfChecks",
    "BNNSGraphContextExecute",
    "BNNSGraphContextGetTensor",
    "BNNSGraphContextGetWorkspaceSize",
    "BNNSGraphContextMake",
    "BNNSGraphContextMakeStreaming",
    "BNNSGraphContextSetArgumentType",
    "BNNSGraphContextSetBatchSize",
    "BNNSGraphContextSetDynamicShapes",
    "BNNSGraphContextSetMessageLogCallback",
    "BNNSGraphContextSetMessageLogMask",
    "BNNSGraphContextSetOutputAllocationCallback",
    "BNNSGraphContextSetStreamingAdvanceCount",
    "BNNSGraphContextSetWorkspaceAllocationCallback",
    "BNNSGraphGetArgumentCount",
    "BNNSGraphGetArgumentIntents",
    "BNNSGraphGetArgumentInterleaveFactors",
    "BNNSGraphGetArgumentNames",
    "BNNSGraphGetArgumentPosition",
    "BNNSGraphGetFunctionCount",
    "BNNSGraphGetFunctionNames",
    "BNNSGraphGetInputCount",
    "BNNSGraphGetInputNames",
    "BNNSGraphGetOutputCount",
    "BNNSGraphGetOutputNames",
    "BNNSGraphTensorFillStrides",
    "BNNSNearestNeighborsGetInfo",
    "BNNSNearestNeighborsLoad",
    "BNNSPermuteFilterApplyBackwardBatch",
    "BNNSScatter",
    "BNNSScatterND",
    "BNNSShuffle",
    "BNNSTile",
    "BNNSTileBackward",
    "BNNSTranspose",
};

constexpr std::string_view built[] = {
    "BNNSApplyMultiheadAttention",
    "BNNSApplyMultiheadAttentionBackward",
    "BNNSArithmeticFilterApplyBackwardBatch",
    "BNNSArithmeticFilterApplyBatch",
    "BNNSClipByGlobalNorm",
    "BNNSClipByNorm",
    "BNNSClipByValue",
    "BNNSComputeNorm",
    "BNNSComputeNormBackward",
    "BNNSCreateRandomGenerator",
    "BNNSCreateRandomGeneratorWithSeed",
    "BNNSDataLayoutGetRank",
    "BNNSDestroyRandomGenerator",
    "BNNSDirectApplyActivationBatch",
    "BNNSDirectApplyBroadcastMatMul",
    "BNNSDirectApplyQuantizer",
    "BNNSFilterApply",
    "BNNSFilterApplyBackwardBatch",
    "BNNSFilterApplyBackwardTwoInputBatch",
    "BNNSFilterApplyBatch",
    "BNNSFilterApplyTwoInput",
    "BNNSFilterApplyTwoInputBatch",
    "BNNSFilterCreateConvolutionLayer",
    "BNNSFilterCreateFullyConnectedLayer",
    "BNNSFilterCreateFusedLayer",
    "BNNSFilterCreateLayerActivation",
    "BNNSFilterCreateLayerArithmetic",
    "BNNSFilterCreateLayerBroadcastMatMul",
    "BNNSFilterCreateLayerConvolution",
    "BNNSFilterCreateLayerFullyConnected",
    "BNNSFilterCreateLayerGram",
    "BNNSFilterCreateLayerLoss",
    "BNNSFilterCreateLayerMultiheadAttention",
    "BNNSFilterCreateLayerNormalization",
    "BNNSFilterCreateLayerPooling",
    "BNNSFilterCreateLayerTensorContraction",
    "BNNSFilterCreateLayerTransposedConvolution",
    "BNNSFilterCreatePoolingLayer",
    "BNNSFilterCreateVectorActivationLayer",
    "BNNSFilterDestroy",
    "BNNSFusedFilterApplyBackwardBatch",
    "BNNSFusedFilterApplyBackwardMultiInputBatch",
    "BNNSFusedFilterApplyBatch",
    "BNNSFusedFilterApplyMultiInputBatch",
    "BNNSGetPointer",
    "BNNSLossFilterApplyBackwardBatch",
    "BNNSLossFilterApplyBatch",
    "BNNSMatMul",
    "BNNSMatMulWorkspaceSize",
    "BNNSNDArrayFullyConnectedSparsifySparseCOO",
    "BNNSNDArrayFullyConnectedSparsifySparseCSR",
    "BNNSNDArrayGetDataSize",
    "BNNSNormalizationFilterApplyBackwardBatch",
    "BNNSNormalizationFilterApplyBatch",
    "BNNSOptimizerStep",
    "BNNSPoolingFilterApplyBackwardBatch",
    "BNNSPoolingFilterApplyBackwardBatchEx",
    "BNNSPoolingFilterApplyBatch",
    "BNNSPoolingFilterApplyBatchEx",
    "BNNSRandomFillCategoricalFloat",
    "BNNSRandomFillNormalFloat",
    "BNNSRandomFillUniformFloat",
    "BNNSRandomFillUniformInt",
    "BNNSRandomGeneratorGetState",
    "BNNSRandomGeneratorSetState",
    "BNNSRandomGeneratorStateSize",
    "BNNSTensorGetAllocationSize",
};

static_assert(std::is_sorted(std::begin(unbuilt), std::end(unbuilt)));
static_assert(std::is_sorted(std::begin(built), std::end(built)));

}  // namespace
}  // namespace obn

using obn::not_implemented;

extern "C" {

int obn_is_implemented(const char* function) {
  if (!function) return -1;
  if (std::binary_search(std::begin(obn::built), std::end(obn::built), function)) return 1;
  if (std::binary_search(std::begin(obn::unbuilt), std::end(obn::unbuilt), function)) return 0;
  return -1;
}

// lstm

int BNNSDirectApplyLSTMBatchTrainingCaching(const BNNSLayerParametersLSTM*, const BNNSFilterParameters*, void*,
                                            size_t) {
  return not_implemented("BNNSDirectApplyLSTMBatchTrainingCaching");
}

int BNNSDirectApplyLSTMBatchBackward(const BNNSLayerParametersLSTM*, const BNNSLayerParametersLSTM*,
                                     const BNNSFilterParameters*, const void*, size_t) {
  return not_implemented("BNNSDirectApplyLSTMBatchBackward");
}

size_t BNNSComputeLSTMTrainingCacheCapacity(const BNNSLayerParametersLSTM*) {
  not_implemented("BNNSComputeLSTMTrainingCacheCapacity");
  return SIZE_MAX;
}

// embedding

BNNSFilter BNNSFilterCreateLayerEmbedding(const BNNSLayerParametersEmbedding*, const BNNSFilterParameters*) {
  not_implemented("BNNSFilterCreateLayerEmbedding");
  return nullptr;
}

// dropout

BNNSFilter BNNSFilterCreateLayerDropout(const BNNSLayerParametersDropout*, const BNNSFilterParameters*) {
  not_implemented("BNNSFilterCreateLayerDropout");
  return nullptr;
}

// permute, padding, resize and copies

BNNSFilter BNNSFilterCreateLayerPermute(const BNNSLayerParametersPermute*, const BNNSFilterParameters*) {
  not_implemented("BNNSFilterCreateLayerPermute");
  return nullptr;
}

int BNNSPermuteFilterApplyBackwardBatch(BNNSFilter, size_t, BNNSNDArrayDescriptor*, size_t,
                                        const BNNSNDArrayDescriptor*, size_t) {
  return not_implemented("BNNSPermuteFilterApplyBackwardBatch");
}

BNNSFilter BNNSFilterCreateLayerPadding(const BNNSLayerParametersPadding*, const BNNSFilterParameters*) {
  not_implemented("BNNSFilterCreateLayerPadding");
  return nullptr;
}

BNNSFilter BNNSFilterCreateLayerResize(const BNNSLayerParametersResize*, const BNNSFilterParameters*) {
  not_implemented("BNNSFilterCreateLayerResize");
  return nullptr;
}

int BNNSCropResize(const BNNSLayerParametersCropResize*, const BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*,
                   BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSCropResize");
}

int BNNSCropResizeBackward(const BNNSLayerParametersCropResize*, BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*,
                           const BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSCropResizeBackward");
}

int BNNSCopy(BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSCopy");
}

int BNNSTranspose(BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*, size_t, size_t, const BNNSFilterParameters*) {
  return not_implemented("BNNSTranspose");
}

int BNNSTile(const BNNSNDArrayDescriptor*, BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSTile");
}

int BNNSTileBackward(BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSTileBackward");
}

int BNNSShuffle(BNNSShuffleType, const BNNSNDArrayDescriptor*, BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSShuffle");
}

int BNNSBandPart(int, int, const BNNSNDArrayDescriptor*, BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSBandPart");
}

// reduction

BNNSFilter BNNSFilterCreateLayerReduction(const BNNSLayerParametersReduction*, const BNNSFilterParameters*) {
  not_implemented("BNNSFilterCreateLayerReduction");
  return nullptr;
}

int BNNSDirectApplyReduction(const BNNSLayerParametersReduction*, const BNNSFilterParameters*) {
  return not_implemented("BNNSDirectApplyReduction");
}

// gather, scatter, top-k, comparison

int BNNSGather(size_t, const BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*, BNNSNDArrayDescriptor*,
               const BNNSFilterParameters*) {
  return not_implemented("BNNSGather");
}

int BNNSScatter(size_t, BNNSReduceFunction, const BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*,
                BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSScatter");
}

int BNNSGatherND(const BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*, BNNSNDArrayDescriptor*,
                 const BNNSFilterParameters*) {
  return not_implemented("BNNSGatherND");
}

int BNNSScatterND(BNNSReduceFunction, const BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*,
                  BNNSNDArrayDescriptor*, const BNNSFilterParameters*) {
  return not_implemented("BNNSScatterND");
}

int BNNSDirectApplyTopK(size_t, size_t, size_t, const BNNSNDArrayDescriptor*, size_t, BNNSNDArrayDescriptor*, size_t,
                        BNNSNDArrayDescriptor*, size_t, const BNNSFilterParameters*) {
  return not_implemented("BNNSDirectApplyTopK");
}

int BNNSDirectApplyInTopK(size_t, size_t, size_t, const BNNSNDArrayDescriptor*, size_t, const BNNSNDArrayDescriptor*,
                          size_t, BNNSNDArrayDescriptor*, size_t, const BNNSFilterParameters*) {
  return not_implemented("BNNSDirectApplyInTopK");
}

int BNNSCompareTensor(const BNNSNDArrayDescriptor*, const BNNSNDArrayDescriptor*, BNNSRelationalOperator,
                      BNNSNDArrayDescriptor*) {
  return not_implemented("BNNSCompareTensor");
}

// nearest neighbours

BNNSNearestNeighbors BNNSCreateNearestNeighbors(unsigned int, unsigned int, unsigned int, BNNSDataType,
                                                const BNNSFilterParameters*) {
  not_implemented("BNNSCreateNearestNeighbors");
  return nullptr;
}

int BNNSNearestNeighborsLoad(BNNSNearestNeighbors, unsigned int, const void*) {
  return not_implemented("BNNSNearestNeighborsLoad");
}

int BNNSNearestNeighborsGetInfo(BNNSNearestNeighbors, int, int*, void*) {
  return not_implemented("BNNSNearestNeighborsGetInfo");
}

void BNNSDestroyNearestNeighbors(BNNSNearestNeighbors) { not_implemented("BNNSDestroyNearestNeighbors"); }

// graph

bnns_graph_compile_options_t BNNSGraphCompileOptionsMakeDefault() {
  not_implemented("BNNSGraphCompileOptionsMakeDefault");
  return {nullptr, 0};
}

void BNNSGraphCompileOptionsDestroy(bnns_graph_compile_options_t) { not_implemented("BNNSGraphCompileOptionsDestroy"); }

void BNNSGraphCompileOptionsSetTargetSingleThread(bnns_graph_compile_options_t, bool) {
  not_implemented("BNNSGraphCompileOptionsSetTargetSingleThread");
}

bool BNNSGraphCompileOptionsGetTargetSingleThread(bnns_graph_compile_options_t) {
  not_implemented("BNNSGraphCompileOptionsGetTargetSingleThread");
  return false;
}

void BNNSGraphCompileOptionsSetGenerateDebugInfo(bnns_graph_compile_options_t, bool) {
  not_implemented("BNNSGraphCompileOptionsSetGenerateDebugInfo");
}

bool BNNSGraphCompileOptionsGetGenerateDebugInfo(bnns_graph_compile_options_t) {
  not_implemented("BNNSGraphCompileOptionsGetGenerateDebugInfo");
  return false;
}

void BNNSGraphCompileOptionsSetOptimizationPreference(bnns_graph_compile_options_t, BNNSGraphOptimizationPreference) {
  not_implemented("BNNSGraphCompileOptionsSetOptimizationPreference");
}

BNNSGraphOptimizationPreference BNNSGraphCompileOptionsGetOptimizationPreference(bnns_graph_compile_options_t) {
  not_implemented("BNNSGraphCompileOptionsGetOptimizationPreference");
  return BNNSGraphOptimizationPreferencePerformance;
}

void BNNSGraphCompileOptionsSetMessageLogCallback(bnns_graph_compile_options_t, bnns_graph_compile_message_fn_t,
                                                  bnns_user_message_data_t*) {
  not_implemented("BNNSGraphCompileOptionsSetMessageLogCallback");
}

void BNNSGraphCompileOptionsSetMessageLogMask(bnns_graph_compile_options_t, uint32_t) {
  not_implemented("BNNSGraphCompileOptionsSetMessageLogMask");
}

void BNNSGraphCompileOptionsSetOutputPath(bnns_graph_compile_options_t, const char*) {
  not_implemented("BNNSGraphCompileOptionsSetOutputPath");
}

const char* BNNSGraphCompileOptionsGetOutputPath(bnns_graph_compile_options_t) {
  not_implemented("BNNSGraphCompileOptionsGetOutputPath");
  return nullptr;
}

void BNNSGraphCompileOptionsSetOutputFD(bnns_graph_compile_options_t, int) {
  not_implemented("BNNSGraphCompileOptionsSetOutputFD");
}

int BNNSGraphCompileOptionsGetOutputFD(bnns_graph_compile_options_t) {
  return not_implemented("BNNSGraphCompileOptionsGetOutputFD");
}

bnns_graph_t BNNSGraphCompileFromFile(const char*, const char*, bnns_graph_compile_options_t) {
  not_implemented("BNNSGraphCompileFromFile");
  return {nullptr, 0};
}

size_t BNNSGraphGetInputCount(bnns_graph_t, const char*) {
  not_implemented("BNNSGraphGetInputCount");
  return SIZE_MAX;
}

size_t BNNSGraphGetOutputCount(bnns_graph_t, const char*) {
  not_implemented("BNNSGraphGetOutputCount");
  return SIZE_MAX;
}

size_t BNNSGraphGetArgumentCount(bnns_graph_t, const char*) {
  not_implemented("BNNSGraphGetArgumentCount");
  return SIZE_MAX;
}

size_t BNNSGraphGetFunctionCount(bnns_graph_t) {
  not_implemented("BNNSGraphGetFunctionCount");
  return SIZE_MAX;
}

int BNNSGraphGetInputNames(bnns_graph_t, const char*, size_t, const char**) {
  return not_implemented("BNNSGraphGetInputNames");
}

int BNNSGraphGetOutputNames(bnns_graph_t, const char*, size_t, const char**) {
  return not_implemented("BNNSGraphGetOutputNames");
}

int BNNSGraphGetArgumentNames(bnns_graph_t, const char*, size_t, const char**) {
  return not_implemented("BNNSGraphGetArgumentNames");
}

int BNNSGraphGetFunctionNames(bnns_graph_t, size_t, const char**) {
  return not_implemented("BNNSGraphGetFunctionNames");
}

int BNNSGraphGetArgumentIntents(bnns_graph_t, const char*, size_t, BNNSGraphArgumentIntent*) {
  return not_implemented("BNNSGraphGetArgumentIntents");
}

size_t BNNSGraphGetArgumentPosition(bnns_graph_t, const char*, const char*) {
  not_implemented("BNNSGraphGetArgumentPosition");
  return SIZE_MAX;
}

int BNNSGraphGetArgumentInterleaveFactors(bnns_graph_t, const char*, size_t, const uint16_t**, size_t*) {
  return not_implemented("BNNSGraphGetArgumentInterleaveFactors");
}

int BNNSGraphTensorFillStrides(bnns_graph_t, const char*, const char*, BNNSTensor*) {
  return not_implemented("BNNSGraphTensorFillStrides");
}

bnns_graph_context_t BNNSGraphContextMake(bnns_graph_t) {
  not_implemented("BNNSGraphContextMake");
  return {nullptr, 0};
}

bnns_graph_context_t BNNSGraphContextMakeStreaming(bnns_graph_t, const char*, size_t, const BNNSTensor*) {
  not_implemented("BNNSGraphContextMakeStreaming");
  return {nullptr, 0};
}

void BNNSGraphContextDestroy(bnns_graph_context_t) { not_implemented("BNNSGraphContextDestroy"); }

int BNNSGraphContextSetDynamicShapes(bnns_graph_context_t, const char*, size_t, bnns_graph_shape_t*) {
  return not_implemented("BNNSGraphContextSetDynamicShapes");
}

int BNNSGraphContextSetBatchSize(bnns_graph_context_t, const char*, uint64_t) {
  return not_implemented("BNNSGraphContextSetBatchSize");
}

int BNNSGraphContextSetArgumentType(bnns_graph_context_t, BNNSGraphArgumentType) {
  return not_implemented("BNNSGraphContextSetArgumentType");
}

void BNNSGraphContextEnableNanAndInfChecks(bnns_graph_context_t, bool) {
  not_implemented("BNNSGraphContextEnableNanAndInfChecks");
}

int BNNSGraphContextSetStreamingAdvanceCount(bnns_graph_context_t, size_t) {
  return not_implemented("BNNSGraphContextSetStreamingAdvanceCount");
}

int BNNSGraphContextExecute(bnns_graph_context_t, const char*, size_t, bnns_graph_argument_t*, size_t, char*) {
  return not_implemented("BNNSGraphContextExecute");
}

size_t BNNSGraphContextGetWorkspaceSize(bnns_graph_context_t, const char*) {
  not_implemented("BNNSGraphContextGetWorkspaceSize");
  return SIZE_MAX;
}

int BNNSGraphContextGetTensor(bnns_graph_context_t, const char*, const char*, bool, BNNSTensor*) {
  return not_implemented("BNNSGraphContextGetTensor");
}

int BNNSGraphContextSetWorkspaceAllocationCallback(bnns_graph_context_t, bnns_graph_realloc_fn_t,
                                                   bnns_graph_free_all_fn_t, size_t, void*) {
  return not_implemented("BNNSGraphContextSetWorkspaceAllocationCallback");
}

int BNNSGraphContextSetOutputAllocationCallback(bnns_graph_context_t, bnns_graph_realloc_fn_t, bnns_graph_free_all_fn_t,
                                                size_t, void*) {
  return not_implemented("BNNSGraphContextSetOutputAllocationCallback");
}

int BNNSGraphContextSetMessageLogCallback(bnns_graph_context_t, bnns_graph_execute_message_fn_t,
                                          bnns_user_message_data_t*) {
  return not_implemented("BNNSGraphContextSetMessageLogCallback");
}

int BNNSGraphContextSetMessageLogMask(bnns_graph_context_t, uint32_t) {
  return not_implemented("BNNSGraphContextSetMessageLogMask");
}

}  // extern "C"
