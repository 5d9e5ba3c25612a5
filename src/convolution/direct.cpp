#include "convolution/convolution.h"

namespace obn::convolution {
namespace {

bool never(const Problem&) { return false; }
size_t nothing(const Problem&) { return 0; }

}  // namespace

constinit const ForwardAlgorithm direct_forward = {"direct", never, nothing, nullptr};
constinit const InputGradientAlgorithm direct_input_gradient = {"direct", never, nothing, nullptr};
constinit const WeightGradientAlgorithm direct_weight_gradient = {"direct", never, nothing, nullptr};

}  // namespace obn::convolution
