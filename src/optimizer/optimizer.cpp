// Entry point of optimizer steps: read the fields, check every tensor, measure norms where they clip, then run the rule
// over all pieces. Letters as in optimizer.h.
#include "optimizer/optimizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/integer.h"
#include "base/interrupt.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/types.h"
#include "base/view.h"
#include "clip/clip.h"
#include "openbnns/bnns/optimizer.h"

namespace obn {

namespace optimizer {

size_t roles_of(Rule rule) {
  constexpr size_t kRoles[kRules] = {0, 1, 1, 1, 1, 1, 2, 3, 1, 2, 2, 3};
  return kRoles[static_cast<size_t>(rule)];
}

namespace {

// Values of a piece of parallel work. Few values are cut too: with two threads the other one has made half of the
// gradients, and to bring them over takes longer than the step itself.
constexpr double kValue = 0.3;  // nanoseconds, about
constexpr size_t kPiece = 65536, kLeastPiece = 8192, kLeastPieces = 4;

// ---- fields ----

// What the caller's struct says, in one form for all of them.
struct Fields {
  Rule rule = Rule::sgd;
  Numbers numbers{};
  BNNSOptimizerClippingFunction clipping = BNNSOptimizerClippingNone;
  float max_norm = 0.0f, use_norm = 0.0f;
};

int check_finite(const char* argument, float value) {
  if (std::isfinite(value)) return 0;
  return fail("%s: expected a finite number; got %g", argument, static_cast<double>(value));
}

int check_decay(const char* argument, float value) {
  if (value >= 0.0f && value < 1.0f) return 0;
  return fail("%s: expected at least 0 and below 1; got %g", argument, static_cast<double>(value));
}

int check_epsilon(float value) {
  if (value >= 0.0f && std::isfinite(value)) return 0;
  return fail("epsilon: expected a finite number of at least 0; got %g", static_cast<double>(value));
}

int read_scales(float gradient_scale, float penalty_scale, Fields* fields) {
  fields->numbers.scale = gradient_scale;
  fields->numbers.penalty_scale = penalty_scale;
  fields->numbers.keep = 1.0f;
  return check_finite("gradient_scale", gradient_scale) != 0 || check_finite("regularization_scale", penalty_scale) != 0
             ? -1
             : 0;
}

int read_penalty(BNNSOptimizerRegularizationFunction function, Fields* fields) {
  switch (function) {
    case BNNSOptimizerRegularizationNone: fields->numbers.penalty = Penalty::none; return 0;
    case BNNSOptimizerRegularizationL1: fields->numbers.penalty = Penalty::l1; return 0;
    case BNNSOptimizerRegularizationL2: fields->numbers.penalty = Penalty::l2; return 0;
  }
  return fail("regularization_func: expected none (0), L1 (1) or L2 (2); got %u", static_cast<unsigned>(function));
}

int clip_values(float low, float high, Fields* fields) {
  fields->numbers.low = low;
  fields->numbers.high = high;
  return clip::check_bounds(low, high);
}

// The two generations of structs say it differently.
template <class Struct>
int read_clipping(const Struct& from, Fields* fields) {
  fields->numbers.low = -std::numeric_limits<float>::infinity();
  fields->numbers.high = std::numeric_limits<float>::infinity();
  if constexpr (requires { from.clip_gradients; }) {
    return from.clip_gradients ? clip_values(from.clip_gradients_min, from.clip_gradients_max, fields) : 0;
  } else {
    fields->clipping = from.clipping_func;
    switch (from.clipping_func) {
      case BNNSOptimizerClippingNone:
        return 0;
      case BNNSOptimizerClippingByValue:
        return clip_values(from.clip_gradients_min, from.clip_gradients_max, fields);
      case BNNSOptimizerClippingByNorm:
      case BNNSOptimizerClippingByGlobalNorm:
        fields->max_norm = from.clip_gradients_max_norm;
        if (from.clipping_func == BNNSOptimizerClippingByGlobalNorm) fields->use_norm = from.clip_gradients_use_norm;
        return clip::check_max_norm(fields->max_norm, fields->use_norm);
    }
    return fail("clipping_func: expected none (0), value (1), norm (2) or global norm (3); got %u",
                static_cast<unsigned>(from.clipping_func));
  }
}

template <class Struct>
int read_sgd(const void* pointer, Fields* fields) {
  Struct from;
  std::memcpy(&from, pointer, sizeof from);
  if (check_finite("learning_rate", from.learning_rate) != 0 || check_finite("momentum", from.momentum) != 0 ||
      read_scales(from.gradient_scale, from.regularization_scale, fields) != 0 ||
      read_penalty(from.regularization_func, fields) != 0 || read_clipping(from, fields) != 0)
    return -1;
  fields->numbers.rate = from.learning_rate;
  fields->numbers.momentum = from.momentum;
  constexpr Rule kPlain[] = {Rule::sgd_momentum_0, Rule::sgd_momentum_1, Rule::sgd_momentum_2};
  constexpr Rule kNesterov[] = {Rule::sgd_nesterov_0, Rule::sgd_nesterov_1, Rule::sgd_nesterov_1};
  const unsigned variant = static_cast<unsigned>(from.sgd_momentum_variant);
  if (variant > 2) return fail("variant: expected 0, 1 or 2; got %u", variant);
  fields->rule = from.momentum == 0.0f ? Rule::sgd : (from.nesterov ? kNesterov : kPlain)[variant];
  return 0;
}

template <class Struct>
int read_adam(const void* pointer, bool is_decoupled, bool is_amsgrad, Fields* fields) {
  Struct from;
  std::memcpy(&from, pointer, sizeof from);
  if (check_finite("learning_rate", from.learning_rate) != 0 || check_decay("beta1", from.beta1) != 0 ||
      check_decay("beta2", from.beta2) != 0 || check_epsilon(from.epsilon) != 0 ||
      read_scales(from.gradient_scale, from.regularization_scale, fields) != 0 || read_clipping(from, fields) != 0)
    return -1;
  if (!(from.time_step >= 1.0f) || !std::isfinite(from.time_step))
    return fail("time_step: expected a number of at least 1; got %g", static_cast<double>(from.time_step));
  if (!is_decoupled && read_penalty(from.regularization_func, fields) != 0) return -1;
  const double rate = from.learning_rate, beta1 = from.beta1, beta2 = from.beta2, t = from.time_step;
  Numbers& c = fields->numbers;
  c.rate = static_cast<float>(rate * std::sqrt(1.0 - std::pow(beta2, t)) / (1.0 - std::pow(beta1, t)));
  c.beta1 = from.beta1;
  c.rest1 = static_cast<float>(1.0 - beta1);
  c.beta2 = from.beta2;
  c.rest2 = static_cast<float>(1.0 - beta2);
  c.epsilon = from.epsilon;
  if (is_decoupled) {
    c.penalty = Penalty::none;
    const double decay = from.regularization_scale;
    c.keep = static_cast<float>(1.0 - (kDecayFollowsRate ? rate * decay : decay));
  }
  fields->rule = is_amsgrad ? Rule::amsgrad : Rule::adam;
  return 0;
}

template <class Struct>
int read_rmsprop(const void* pointer, Fields* fields) {
  Struct from;
  std::memcpy(&from, pointer, sizeof from);
  if (check_finite("learning_rate", from.learning_rate) != 0 || check_decay("alpha", from.alpha) != 0 ||
      check_epsilon(from.epsilon) != 0 || check_finite("momentum", from.momentum) != 0 ||
      read_scales(from.gradient_scale, from.regularization_scale, fields) != 0 ||
      read_penalty(from.regularization_func, fields) != 0 || read_clipping(from, fields) != 0)
    return -1;
  Numbers& c = fields->numbers;
  c.rate = from.learning_rate;
  c.momentum = from.momentum;
  c.beta2 = from.alpha;
  c.rest2 = static_cast<float>(1.0 - static_cast<double>(from.alpha));
  c.epsilon = from.epsilon;
  const bool has_momentum = from.momentum != 0.0f;
  if (from.centered) {
    fields->rule = has_momentum ? Rule::rmsprop_centered_momentum : Rule::rmsprop_centered;
  } else {
    fields->rule = has_momentum ? Rule::rmsprop_momentum : Rule::rmsprop;
  }
  return 0;
}

int read_fields(BNNSOptimizerFunction function, const void* pointer, Fields* fields) {
  if (!pointer) return fail("fields: expected the numbers of the optimizer; got NULL");
  switch (function) {
    case BNNSOptimizerFunctionSGDMomentum:
      return read_sgd<BNNSOptimizerSGDMomentumFields>(pointer, fields);
    case BNNSOptimizerFunctionSGDMomentumWithClipping:
      return read_sgd<BNNSOptimizerSGDMomentumWithClippingFields>(pointer, fields);
    case BNNSOptimizerFunctionAdam:
      return read_adam<BNNSOptimizerAdamFields>(pointer, false, false, fields);
    case BNNSOptimizerFunctionAdamW:
      return read_adam<BNNSOptimizerAdamFields>(pointer, true, false, fields);
    case BNNSOptimizerFunctionAdamAMSGrad:
      return read_adam<BNNSOptimizerAdamFields>(pointer, false, true, fields);
    case BNNSOptimizerFunctionAdamWAMSGrad:
      return read_adam<BNNSOptimizerAdamFields>(pointer, true, true, fields);
    case BNNSOptimizerFunctionAdamWithClipping:
      return read_adam<BNNSOptimizerAdamWithClippingFields>(pointer, false, false, fields);
    case BNNSOptimizerFunctionAdamWWithClipping:
      return read_adam<BNNSOptimizerAdamWithClippingFields>(pointer, true, false, fields);
    case BNNSOptimizerFunctionAdamAMSGradWithClipping:
      return read_adam<BNNSOptimizerAdamWithClippingFields>(pointer, false, true, fields);
    case BNNSOptimizerFunctionAdamWAMSGradWithClipping:
      return read_adam<BNNSOptimizerAdamWithClippingFields>(pointer, true, true, fields);
    case BNNSOptimizerFunctionRMSProp:
      return read_rmsprop<BNNSOptimizerRMSPropFields>(pointer, fields);
    case BNNSOptimizerFunctionRMSPropWithClipping:
      return read_rmsprop<BNNSOptimizerRMSPropWithClippingFields>(pointer, fields);
  }
  return fail("function: expected a rule from 1 to 12; got %u", static_cast<unsigned>(function));
}

// ---- tensors ----

struct Tensor {
  float* w;
  const float* g;
  float* a[kMaxRoles];
  size_t start;  // in the one long array of all tensors
  size_t count;
  double factor;  // of the gradient, from clipping by norm
};

// Memory of one array, for the search of overlaps.
struct Range {
  uintptr_t first, end;
  bool is_written;
};

// The parts of workspace().
struct Work {
  Tensor* tensors;
  Range* ranges;    // every array of the call
  double* partial;  // sums of squares, one per part of a tensor in a piece
};

// "parameters[3]", for sentences; every array of a step gets its name, so this must be quick.
void name_entry(const char* argument, size_t index, char (&name)[48]) {
  const size_t length = std::strlen(argument);
  std::memcpy(name, argument, length);
  name[length] = '[';
  char* end = std::to_chars(name + length + 1, name + sizeof name - 2, index).ptr;
  end[0] = ']';
  end[1] = '\0';
}

// descriptor p of `arrays`, packed float32; count 0: any size.
int read_array(const BNNSNDArrayDescriptor* const* arrays, size_t p, Access access, const char* argument, size_t count,
               float** data, size_t* found) {
  char name[48];
  name_entry(argument, p, name);
  const BNNSNDArrayDescriptor* descriptor = arrays ? arrays[p] : nullptr;
  if (!descriptor) return fail("%s: expected an array; got NULL", arrays ? name : argument);
  View view;
  size_t only_sample;
  if (read_view(*descriptor, access, name, &view) != 0) return -1;
  if (view.type != BNNSDataTypeFloat32) return fail("%s: expected float32; got %s", name, obn::name_of(view.type));
  if (view.layout == BNNSDataLayoutFullyConnectedSparse || view.layout == BNNSDataLayoutConvolutionWeightsOIHW_Pack32)
    return fail("%s: expected a layout of plain values; got %s", name, obn::name_of(view.layout));
  if (!view.is_packed())
    return fail("%s: expected packed values; got %zu values spread over %zu", name, view.count, view.span);
  if (count != 0 && view.count != count)
    return fail("%s: expected %zu values, as its parameter; got %zu", name, count, view.count);
  if (read_batch(view, view.data, 1, 0, access, name, &only_sample) != 0) return -1;
  *data = static_cast<float*>(view.data);
  *found = view.count;
  return 0;
}

// What is written must lie apart from everything else.
int check_apart(Range* ranges, size_t count) {
  const auto before = [](const Range& a, const Range& b) { return a.first < b.first; };
  if (!std::is_sorted(ranges, ranges + count, before)) std::sort(ranges, ranges + count, before);
  uintptr_t end = 0, written_end = 0;
  for (size_t i = 0; i < count; ++i) {
    if (ranges[i].first < (ranges[i].is_written ? end : written_end))
      return fail("parameters, gradients, accumulators: expected arrays apart from each other; two of them overlap");
    end = std::max(end, ranges[i].end);
    if (ranges[i].is_written) written_end = std::max(written_end, ranges[i].end);
  }
  return 0;
}

// ---- a step ----

class Step {
 public:
  int read(BNNSOptimizerFunction function, const void* fields, size_t count, BNNSNDArrayDescriptor** parameters,
           const BNNSNDArrayDescriptor** gradients, BNNSNDArrayDescriptor** accumulators, size_t threads);
  void run();

 private:
  int read_tensors(BNNSNDArrayDescriptor** parameters, const BNNSNDArrayDescriptor** gradients,
                   BNNSNDArrayDescriptor** accumulators);
  void measure();
  double sum_of(size_t tensor) const;
  size_t pieces() const { return divide_up(total_, piece_); }
  template <class Body>
  void parts(size_t piece, const Body& body) const;
  template <class Body>
  void each_piece(const Body& body) const;

  Fields fields_;
  size_t count_ = 0, total_ = 0, threads_ = 0;
  size_t piece_ = kPiece;  // values, by their number alone
  Work work_{};
};

int Step::read(BNNSOptimizerFunction function, const void* fields, size_t count, BNNSNDArrayDescriptor** parameters,
               const BNNSNDArrayDescriptor** gradients, BNNSNDArrayDescriptor** accumulators, size_t threads) {
  if (read_fields(function, fields, &fields_) != 0) return -1;
  count_ = count;
  threads_ = threads;
  if (count == 0) return 0;
  if (!parameters || !gradients) return fail("%s: expected arrays; got NULL", parameters ? "gradients" : "parameters");
  const size_t arrays = 2 + roles_of(fields_.rule);
  size_t values = 0;
  for (size_t p = 0; p < count; ++p) {  // how many partial sums there are
    float* data;
    size_t found;
    if (read_array(parameters, p, Access::write, "parameters", 0, &data, &found) != 0) return -1;
    values += found;  // cannot overflow: the arrays lie apart, or the step is refused below
  }
  total_ = values;
  piece_ = std::clamp(values / kLeastPieces, kLeastPiece, kPiece);
  std::byte* work = workspace(count * (sizeof(Tensor) + arrays * sizeof(Range) + sizeof(double)) +
                              (pieces() + 1) * sizeof(double));
  if (!work) return -1;
  work_.tensors = reinterpret_cast<Tensor*>(work);
  work_.ranges = reinterpret_cast<Range*>(work_.tensors + count);
  work_.partial = reinterpret_cast<double*>(work_.ranges + count * arrays);
  return read_tensors(parameters, gradients, accumulators);
}

int Step::read_tensors(BNNSNDArrayDescriptor** parameters, const BNNSNDArrayDescriptor** gradients,
                       BNNSNDArrayDescriptor** accumulators) {
  const size_t roles = roles_of(fields_.rule);
  size_t start = 0;
  Range* range = work_.ranges;
  const auto note = [&](const float* data, size_t n, bool is_written) {
    const uintptr_t first = reinterpret_cast<uintptr_t>(data);
    *range++ = {first, first + n * sizeof(float), is_written};
  };
  for (size_t p = 0; p < count_; ++p) {
    Tensor& t = work_.tensors[p];
    t = {};
    float* g;
    size_t n;
    if (read_array(parameters, p, Access::write, "parameters", 0, &t.w, &t.count) != 0 ||
        read_array(gradients, p, Access::read, "gradients", t.count, &g, &n) != 0)
      return -1;
    t.g = g;
    t.start = start;
    t.factor = 1.0;
    start += t.count;
    note(t.w, n, true);
    note(t.g, n, false);
    for (size_t k = 0; k < roles; ++k) {
      if (read_array(accumulators, k * count_ + p, Access::write, "accumulators", t.count, &t.a[k], &n) != 0) return -1;
      note(t.a[k], n, true);
    }
  }
  return check_apart(work_.ranges, static_cast<size_t>(range - work_.ranges));
}

// Calls body(tensor, first, n) for every part of a tensor in the piece.
template <class Body>
void Step::parts(size_t piece, const Body& body) const {
  size_t at = piece * piece_;
  const size_t end = std::min(at + piece_, total_);
  const Tensor* after = std::upper_bound(work_.tensors, work_.tensors + count_, at,
                                         [](size_t value, const Tensor& tensor) { return value < tensor.start; });
  for (size_t p = static_cast<size_t>(after - work_.tensors) - 1; at < end; ++p) {
    const Tensor& tensor = work_.tensors[p];
    const size_t first = at - tensor.start, n = std::min(tensor.count - first, end - at);
    body(p, first, n);
    at += n;
  }
}

// Calls body(piece) for all pieces.
template <class Body>
void Step::each_piece(const Body& body) const {
  parallel(pieces(), threads_for(threads_), kValue * total_, body);
}

// The norms that clip. Piece and tensor both only grow from part to part, so their sum numbers the parts.
void Step::measure() {
  const bool is_global = fields_.clipping == BNNSOptimizerClippingByGlobalNorm;
  if (!is_global && fields_.clipping != BNNSOptimizerClippingByNorm) return;
  double joint = static_cast<double>(fields_.use_norm);
  if (!is_global || fields_.use_norm == 0.0f) {
    const auto sum_squares = clip::targets.best().sum_squares;
    each_piece([&](size_t piece) {
      parts(piece, [&](size_t p, size_t first, size_t n) {
        work_.partial[piece + p] = sum_squares(work_.tensors[p].g + first, n);
      });
    });
  }
  if (is_global && fields_.use_norm == 0.0f) {
    double sum = 0.0;
    for (size_t p = 0; p < count_; ++p) sum += sum_of(p);
    joint = std::sqrt(sum);
  }
  const double max_norm = static_cast<double>(fields_.max_norm);
  for (size_t p = 0; p < count_; ++p)
    work_.tensors[p].factor = clip::factor_of(is_global ? joint : std::sqrt(sum_of(p)), max_norm);
}

double Step::sum_of(size_t p) const {
  const Tensor& tensor = work_.tensors[p];
  const size_t last = (tensor.start + tensor.count - 1) / piece_;
  double sum = 0.0;
  for (size_t piece = tensor.start / piece_; piece <= last; ++piece) sum += work_.partial[piece + p];
  return sum;
}

void Step::run() {
  if (count_ == 0) return;
  measure();
  const Run function = targets.best().run[static_cast<size_t>(fields_.rule)];
  const size_t roles = roles_of(fields_.rule);
  each_piece([&](size_t piece) {
    Numbers numbers = fields_.numbers;
    parts(piece, [&](size_t p, size_t first, size_t n) {
      const Tensor& t = work_.tensors[p];
      const double scale = static_cast<double>(fields_.numbers.scale) * t.factor;
      numbers.scale = static_cast<float>(scale);
      float* a[kMaxRoles] = {};
      for (size_t k = 0; k < roles; ++k) a[k] = t.a[k] + first;
      if (scale == 0.0 || std::fabs(scale) >= double{std::numeric_limits<float>::min()})
        return function(numbers, t.w + first, t.g + first, a, n);
      // A norm so large that its inverse has few digits as a float: the product is made before.
      numbers.scale = 1.0f;
      float g[512];
      for (size_t i = 0; i < n; i += std::size(g)) {
        const size_t m = std::min(std::size(g), n - i);
        clip::targets.best().scale(t.g + first + i, &scale, false, g, false, m);
        function(numbers, t.w + first + i, g, a, m);
        for (size_t k = 0; k < roles; ++k) a[k] += m;
      }
    });
  });
}

}  // namespace
}  // namespace optimizer
}  // namespace obn

extern "C" int BNNSOptimizerStep(BNNSOptimizerFunction function, const void* OptimizerAlgFields,
                                 size_t number_of_parameters, BNNSNDArrayDescriptor** parameters,
                                 const BNNSNDArrayDescriptor** gradients, BNNSNDArrayDescriptor** accumulators,
                                 const BNNSFilterParameters* filter_params) {
  obn::Options options;
  obn::optimizer::Step step;
  if (obn::Options::read(filter_params, &options) != 0 ||
      step.read(function, OptimizerAlgFields, number_of_parameters, parameters, gradients, accumulators,
                options.threads) != 0)
    return -1;
  return obn::interruptible(nullptr, [&] {
    step.run();
    return 0;
  });
}
