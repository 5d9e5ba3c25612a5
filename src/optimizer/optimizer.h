// Optimizer steps: every value of every parameter is moved by a rule that looks at this value alone.
//
//   w    parameter            g    its gradient, after clipping, scaling and penalty
//   a    accumulators: state that the caller keeps from step to step, by role
//
// All tensors of a step count as one long array, cut in pieces of one length: many small tensors cost what one large
// tensor costs.
#pragma once

#include <cstddef>

#include "base/targets.h"

namespace obn::optimizer {

// docs/interface/optimizer.md, section 6, leaves open how AdamW takes off its decay: true is W - rate·decay·W, as PyTorch
// does, false W - decay·W, as the paper writes it.
inline constexpr bool kDecayFollowsRate = true;

inline constexpr size_t kMaxRoles = 3;

enum class Rule : unsigned {
  sgd,
  sgd_momentum_0,
  sgd_momentum_1,
  sgd_momentum_2,
  sgd_nesterov_0,
  sgd_nesterov_1,  // and of variant 2: the formulas are the same
  adam,            // and AdamW
  amsgrad,
  rmsprop,
  rmsprop_momentum,
  rmsprop_centered,
  rmsprop_centered_momentum,
};
inline constexpr size_t kRules = 12;
size_t roles_of(Rule rule);  // accumulators per parameter

enum class Penalty { none, l1, l2 };

// The numbers of one step; a rule reads those of its family.
struct Numbers {
  // g = scale·clamp(∂L/∂W) + penalty(W)
  float low, high;  // infinite where values are not clipped
  float scale;      // of the gradient; clipping by norm multiplies it, for each tensor
  Penalty penalty;
  float penalty_scale;

  float rate;      // SGD, RMSProp; Adam: with both corrections of its moments
  float momentum;  // SGD, RMSProp
  float beta1, rest1;  // Adam; rest = 1 - beta
  float beta2, rest2;  // Adam; RMSProp: alpha
  float epsilon;
  float keep;  // AdamW: what its decay leaves of W; else 1
};

// w (n) and a[roles] (n) are read and written, g (n) is read.
using Run = void (*)(const Numbers& numbers, float* w, const float* g, float* const* a, size_t n);

// One target's loops.
struct Kernels {
  Run run[kRules];
};

struct Compiled {
  static const Kernels portable, avx2, avx512;
};
inline constexpr Targets<Kernels> targets = targets_of<Compiled>();

// ---- the obvious formulas (optimizer_ref.cpp), one value in float64 ----

namespace ref {

double gradient(const Numbers& numbers, double w, double g);
// The new w; a (roles) is read and written. g is the gradient as above.
double step(Rule rule, const Numbers& numbers, double w, double g, double* a);

}  // namespace ref

}  // namespace obn::optimizer
