#include "convolution/convolution.h"

namespace obn::convolution {
namespace {

bool never(const Problem&) { return false; }
size_t nothing(const Problem&) { return 0; }

}  // namespace

constinit const ForwardAlgorithm winograd_forward = {"winograd", never, nothing, nullptr};
constinit const InputGradientAlgorithm winograd_input_gradient = {"winograd", never, nothing, nullptr};
constinit const WeightGradientAlgorithm winograd_weight_gradient = {"winograd", never, nothing, nullptr};

}  // namespace obn::convolution
