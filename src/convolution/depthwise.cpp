#include "convolution/convolution.h"

namespace obn::convolution {
namespace {

bool never(const Problem&) { return false; }
size_t nothing(const Problem&) { return 0; }

}  // namespace

constinit const ForwardAlgorithm depthwise_forward = {"depthwise", never, nothing, nullptr};
constinit const InputGradientAlgorithm depthwise_input_gradient = {"depthwise", never, nothing, nullptr};
constinit const WeightGradientAlgorithm depthwise_weight_gradient = {"depthwise", never, nothing, nullptr};

}  // namespace obn::convolution
