#include "convolution/convolution.h"

namespace obn::convolution {
namespace {

bool never(const Problem&) { return false; }
size_t nothing(const Problem&) { return 0; }

}  // namespace

constinit const ForwardAlgorithm narrow_forward = {"narrow", never, nothing, nullptr};
constinit const InputGradientAlgorithm narrow_input_gradient = {"narrow", never, nothing, nullptr};
constinit const WeightGradientAlgorithm narrow_weight_gradient = {"narrow", never, nothing, nullptr};

}  // namespace obn::convolution
