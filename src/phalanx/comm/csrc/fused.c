/* Fused optimizer step: the owner of a slice of the shared parameters sums its gradients over the
 * ranks and updates it in one pass, so that no sum is written and no state exists twice.
 *
 * The formulas are those of torch.optim, in the order of operations of optimizer_update.py, with the
 * same bits. */
#include "kernels.h"
#include "wide.h"

#include <math.h>

typedef void (*update)(const double *coefficients, void *parameters, void *const *states,
                       const void *gradients, size_t n);

/* coefficients: learning rate, weight decay. */
#define DEFINE_SGD(NAME, TYPE)                                                                  \
    WIDE static void sgd_##NAME(const double *c, void *p_, void *const *states, const void *g_, \
                                size_t n)                                                       \
    {                                                                                           \
        TYPE *p = p_, rate = (TYPE)c[0], decay = (TYPE)c[1];                                    \
        const TYPE *g = g_;                                                                     \
        (void)states;                                                                           \
        INDEPENDENT                                                                             \
        for (size_t i = 0; i < n; i++)                                                          \
            p[i] = p[i] - rate * (g[i] + decay * p[i]);                                         \
    }

/* coefficients: learning rate, weight decay, momentum. */
#define DEFINE_MOMENTUM(NAME, TYPE)                                                             \
    WIDE static void momentum_##NAME(const double *c, void *p_, void *const *states,            \
                                     const void *g_, size_t n)                                  \
    {                                                                                           \
        TYPE *p = p_, *velocity = states[0];                                                    \
        TYPE rate = (TYPE)c[0], decay = (TYPE)c[1], momentum = (TYPE)c[2];                      \
        const TYPE *g = g_;                                                                     \
        INDEPENDENT                                                                             \
        for (size_t i = 0; i < n; i++) {                                                        \
            TYPE v = momentum * velocity[i] + (g[i] + decay * p[i]);                            \
            velocity[i] = v;                                                                    \
            p[i] = p[i] - rate * v;                                                             \
        }                                                                                       \
    }

/* coefficients: step size, weight decay, 1 - beta1, beta2, 1 - beta2, factor of the root, epsilon.
 * GRADIENT, PARAMETER: values after weight decay, which Adam adds to the gradient and AdamW takes
 * from the parameter. */
#define DEFINE_ADAM(RULE, NAME, TYPE, SQRT, GRADIENT, PARAMETER)                                \
    WIDE static void RULE##_##NAME(const double *c, void *p_, void *const *states,              \
                                   const void *g_, size_t n)                                    \
    {                                                                                           \
        TYPE *p = p_, *first = states[0], *second = states[1];                                  \
        TYPE step = (TYPE)c[0], decay = (TYPE)c[1], new1 = (TYPE)c[2];                          \
        TYPE old2 = (TYPE)c[3], new2 = (TYPE)c[4], root = (TYPE)c[5], epsilon = (TYPE)c[6];     \
        const TYPE *g = g_;                                                                     \
        INDEPENDENT                                                                             \
        for (size_t i = 0; i < n; i++) {                                                        \
            TYPE gradient = (GRADIENT), parameter = (PARAMETER);                                \
            TYPE m = first[i] + new1 * (gradient - first[i]);                                   \
            TYPE v = old2 * second[i] + new2 * gradient * gradient;                             \
            first[i] = m;                                                                       \
            second[i] = v;                                                                      \
            p[i] = parameter - step * m / (SQRT(v) * root + epsilon);                           \
        }                                                                                       \
    }

DEFINE_SGD(f32, float)
DEFINE_SGD(f64, double)
DEFINE_MOMENTUM(f32, float)
DEFINE_MOMENTUM(f64, double)
DEFINE_ADAM(adam, f32, float, sqrtf, g[i] + decay * p[i], p[i])
DEFINE_ADAM(adam, f64, double, sqrt, g[i] + decay * p[i], p[i])
DEFINE_ADAM(adamw, f32, float, sqrtf, g[i], p[i] * decay)
DEFINE_ADAM(adamw, f64, double, sqrt, g[i], p[i] * decay)

static const update UPDATES[NUM_OPTIMIZERS][2] = {
    [SGD] = {sgd_f32, sgd_f64}, [SGD_MOMENTUM] = {momentum_f32, momentum_f64},
    [ADAM] = {adam_f32, adam_f64}, [ADAMW] = {adamw_f32, adamw_f64},
};
static const int NUM_STATES[NUM_OPTIMIZERS] = {
    [SGD] = 0, [SGD_MOMENTUM] = 1, [ADAM] = 2, [ADAMW] = 2,
};

void apply_update(int optimizer, const double *coefficients, void *parameters, void *const *states,
                  const void *gradients, size_t n, int dtype)
{
    UPDATES[optimizer][dtype == FLOAT64](coefficients, parameters, states, gradients, n);
}

typedef struct {
    const double *coefficients;
    char *parameters;
    char *states[MAX_STATES];
    int optimizer, dtype;
} target;

static int update_slice(void *context, size_t part, size_t begin, const void *const *terms,
                        int num_terms, size_t n)
{
    target *to = context;
    (void)part;
    char sums[BLOCK_BYTES] __attribute__((aligned(64)));
    const void *gradients = terms[0];
    void *states[MAX_STATES] = {NULL}, *output = sums;
    size_t at = begin * ITEMSIZE[to->dtype];
    if (num_terms > 1) {
        reduce_terms(&output, 1, terms, num_terms, n, to->dtype, SUM, 1.0);
        gradients = sums;
    }
    for (int k = 0; k < NUM_STATES[to->optimizer]; k++)
        states[k] = to->states[k] + at;
    apply_update(to->optimizer, to->coefficients, to->parameters + at, states, gradients, n,
                 to->dtype);
    return 1;
}

int fused_step(grad_buffer *gradients, const size_t *addresses, int optimizer,
               const double *coefficients, void *parameters, void *const *states, int dtype,
               double *used_s, double timeout_s, interrupted check)
{
    target to = {coefficients, parameters, {NULL}, optimizer, dtype};
    for (int k = 0; k < NUM_STATES[optimizer]; k++)
        to.states[k] = states[k];
    return grad_buffer_reduce(gradients, addresses, NULL, FUSED_STEP, optimizer, update_slice, &to,
                              used_s, timeout_s, check);
}
