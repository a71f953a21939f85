/* tributary.h: how a trainer in C, or in any language that calls C, attaches to the worker daemon of its node. The
 * functions are those of tributary::Session (session/session.h), which says more about rounds and memory.
 *
 *   tributary_session* s = NULL;
 *   tributary_attach(&options, &s);                         blocks until all ranks are there
 *   tributary_view view = {.size = sizeof view};
 *   tributary_get_view(s, &view);
 *   if (view.fresh) for every tensor t: fill tributary_initial(s, t), unless that is NULL: another rank gives it
 *   tributary_start(s);                                     the parameters of view.resume_round are there
 *   for (uint64_t round = view.resume_round + 1; ...; ++round) {
 *     forward pass, reading tributary_parameters(s, t)
 *     for every tensor t: write the SUM of this rank's samples' gradients to tributary_gradient(s, t);
 *                         tributary_ready(s, t, samples, rate)
 *     tributary_wait(s, TRIBUTARY_ALL_TENSORS, &state);     new parameters are there
 *   }
 *   tributary_finish(s, TRIBUTARY_FINISHED, NULL);
 *   tributary_saved(s);                                     an error if the final state is not durable
 *   tributary_destroy(s);
 *
 * Every function that can fail returns a status; tributary_last_error() has the sentence, of the calling thread's last
 * failed call (a NULL is one, too). A struct begins with its size, so that a library newer than the program reads and
 * writes only what the program has; one that is older refuses what is set and unknown to it.
 * Pointers that are returned belong to the session and end with it. Thread rule: one thread at a time for a session,
 * except that tributary_ready() and tributary_ready_after() of different tensors may be called from different threads.
 * A session belongs to the process that attached. When that process ends the rank is gone, whatever children it has;
 * children that it forks have no part in the session.
 *
 * A trainer on a GPU sets tributary_options.device. With tributary_view.on_device gradients and parameters are memory
 * of that device; else they are host memory, pinned if the system allows it, to be copied to and fro on a stream. In
 * both cases it says tributary_ready_after() that stream instead of tributary_ready(), and after tributary_wait() the
 * parameters are there for what is put on streams then. Work that uses a session's memory is to be over before
 * tributary_destroy(). */
#ifndef TRIBUTARY_H
#define TRIBUTARY_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TRIBUTARY_API __attribute__((visibility("default")))
#else
#define TRIBUTARY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* TRIBUTARY_OK, or 1 + the number of the error (common/base/result.h): stable, and new ones are added at the end. Those
 * that are not here have a name, too, and nothing but the sentence to act on. */
typedef int32_t tributary_status;
#define TRIBUTARY_OK 0
#define TRIBUTARY_INTERNAL 1         /* a mistake of the library */
#define TRIBUTARY_INVALID_ARGUMENT 2 /* a value that can never be right, or a call at the wrong time */
#define TRIBUTARY_CONFIG 3           /* the job's text */
#define TRIBUTARY_STALE_VIEW 9       /* attach again */
#define TRIBUTARY_WRONG_ROUND 10     /* ready() twice before wait(), or wait() for all before all are ready */
#define TRIBUTARY_LAYOUT_MISMATCH 11 /* the job has other tensors */
#define TRIBUTARY_CONFIG_MISMATCH 12 /* the job has another configuration */
#define TRIBUTARY_TOPOLOGY 13        /* rank, local_rank, world_size ... contradict each other */
#define TRIBUTARY_STORE 15           /* the final state was not saved */
#define TRIBUTARY_TIMEOUT 17
#define TRIBUTARY_UNAVAILABLE 18 /* the worker daemon is not there, or is gone: attach again */
#define TRIBUTARY_STOPPED 19     /* the job was stopped in good order */
#define TRIBUTARY_LIMIT 20       /* a configured bound is reached */
#define TRIBUTARY_NO_DEVICE 22   /* the GPU has failed, or there is none, or no library for it */

typedef struct tributary_session tributary_session;
typedef struct tributary_keepsake tributary_keepsake;

/* The library's release, as "0.2.0". */
TRIBUTARY_API const char* tributary_version(void);
/* Of this thread's last failed call, in a sentence that names the thing, the value and what to do; "" before any. Valid
 * until the thread's next failed call. */
TRIBUTARY_API const char* tributary_last_error(void);
/* "TRIBUTARY_UNAVAILABLE"; "TRIBUTARY_?" for one that this library does not know. */
TRIBUTARY_API const char* tributary_status_name(tributary_status status);

typedef struct tributary_tensor {
  size_t size;           /* sizeof(tributary_tensor) */
  const char* name;      /* unique within the job */
  const uint64_t* shape; /* its product is the number of elements, all of them fp32 */
  uint32_t dimensions;   /* 0: a scalar */
  uint32_t group;        /* 0: the job's [optimizer]; k: its k-th [[groups]] */
  /* Which ranks hold it, by model rank, ascending; NULL: all. All ranks declare all tensors; those that a rank does not
   * hold it may not name afterwards. */
  const uint32_t* holders;
  uint32_t holder_count;
} tributary_tensor;

typedef struct tributary_options {
  size_t size; /* sizeof(tributary_options) */
  /* The worker's. NULL: TRIBUTARY_SOCKET of the environment, else where a worker of this user listens that names none:
   * tributary/worker.sock in XDG_RUNTIME_DIR or /run/user/UID. A worker of another user, but root's, is refused. */
  const char* socket;
  const char* job;                 /* the job as TOML, or the same tables as JSON if its first character is '{' */
  const tributary_tensor* tensors; /* an array of `tensor_count`, whose elements are tensors[0].size apart */
  size_t tensor_count;
  /* As torchrun sets them. With from_environment the five are read from the environment (RANK, WORLD_SIZE, LOCAL_RANK,
   * LOCAL_WORLD_SIZE, GROUP_RANK; each of them with TRIBUTARY_ in front comes first). */
  uint32_t from_environment;
  uint32_t rank, world_size, local_rank, local_world_size, node_rank;
  uint32_t attach_timeout_ms; /* for the worker and all members to be there, from the last step of servers that load; 0:
                               * TRIBUTARY_ATTACH_TIMEOUT (seconds) of the environment, else two minutes */
  uint32_t gradients_move;    /* 1: tributary_gradient() is asked for anew in every round, and all of it is written */
  int32_t device; /* the CUDA device, as this process counts, that the worker is asked to lend memory of; -1: none */
  const char* computes_with; /* what computes the gradients ("torch 2.13 cpu"): compared with other ranks'; NULL: not */
  /* Told what an attach waits for, and what makes copies slower; NULL: nobody. */
  void (*note)(const char* text, void* context);
  void* note_context;
  tributary_keepsake* keepsake; /* NULL: nothing is kept */
  uint32_t model_rank; /* which part of the model this rank holds, with pipeline or tensor parallelism; else 0 */
  /* Set by a signal handler, and read while the attach waits: not 0 ends it with TRIBUTARY_STOPPED. To be there as long
   * as the session is; NULL: nothing ends it. */
  const volatile int* stops;
} tributary_options;

/* What outlives a session: memory that the node's next worker needs if this one is killed. A trainer that gives the
 * same one to every attach of a job loses no round then. Destroyed after the last session that was given it. */
TRIBUTARY_API tributary_keepsake* tributary_keepsake_create(void);
TRIBUTARY_API void tributary_keepsake_destroy(tributary_keepsake* keepsake);

/* On failure *session is NULL. TRIBUTARY_UNAVAILABLE, TRIBUTARY_TIMEOUT and TRIBUTARY_STALE_VIEW: attaching again may
 * help. */
TRIBUTARY_API tributary_status tributary_attach(const tributary_options* options, tributary_session** session);
/* Without tributary_finish() before: the rank counts as failed. NULL is allowed. */
TRIBUTARY_API void tributary_destroy(tributary_session* session);

/* What the session is in; does not change. */
typedef struct tributary_view {
  size_t size; /* sizeof(tributary_view) */
  uint32_t rank, world_size, local_rank, local_world_size, node_rank;
  uint32_t fresh;        /* 1: nobody has parameters yet: the first rank that holds a tensor gives its initial values */
  uint32_t on_device;    /* 1: gradients and parameters are memory of tributary_options.device */
  uint64_t resume_round; /* that the parameters belong to after tributary_start(); 0 for a fresh job */
  uint64_t job;          /* the coordinator's number for it */
  uint32_t first_state;  /* TRIBUTARY_FIRST_: whether one rank's state comes to those that have none */
} tributary_view;
#define TRIBUTARY_FIRST_NONE 0  /* nobody has any */
#define TRIBUTARY_FIRST_COMES 1 /* tributary_get_kept_of_first() waits for it */
#define TRIBUTARY_FIRST_GIVEN \
  2 /* this rank gives it: it keeps a whole state of resume_round before its first ready() */
TRIBUTARY_API tributary_status tributary_get_view(const tributary_session* session, tributary_view* view);

/* Host memory for a tensor's initial values. NULL: not fresh, another rank gives them, after tributary_start(), no such
 * tensor. */
TRIBUTARY_API float* tributary_initial(tributary_session* session, size_t tensor);
/* Blocks until the parameters of resume_round are there. */
TRIBUTARY_API tributary_status tributary_start(tributary_session* session);

/* Where the tensor's gradient of its next round is to be written, and where its parameters are. On a device if
 * tributary_view.on_device. A gradient is not to be touched between tributary_ready() and tributary_wait() of it, nor
 * are parameters to be read. NULL: no such tensor. */
TRIBUTARY_API float* tributary_gradient(tributary_session* session, size_t tensor);
TRIBUTARY_API const float* tributary_parameters(const tributary_session* session, size_t tensor);

/* For who reads parameters where they are: from now on tributary_parameters() are in memory that can be read until this
 * share of it is released, after tributary_destroy(), too; it holds what it held last. A page that this process writes
 * there, or pins (cudaHostRegister, mlock), is its own from then on, and shows no later round. Before the first
 * tributary_parameters(). On a device: NULL. */
typedef struct tributary_parameter_memory tributary_parameter_memory;
TRIBUTARY_API tributary_parameter_memory* tributary_hold_parameters(tributary_session* session);
TRIBUTARY_API void tributary_release_parameters(tributary_parameter_memory* memory);

/* What this rank needs beside the parameters to go on after `round`. The worker holds it for whoever takes this rank's
 * place on the node, and it is kept with a snapshot of the round. After tributary_start(), and before the next round's
 * first tributary_ready(); said again, the last one counts. TRIBUTARY_LIMIT: more than 256 KiB less 32 bytes. */
TRIBUTARY_API tributary_status tributary_keep(tributary_session* session, uint64_t round, const void* state,
                                              size_t size);
/* What was kept of resume_round; *size 0: nothing is known of it. */
TRIBUTARY_API tributary_status tributary_kept(const tributary_session* session, const void** state, size_t* size);

/* The same with a large part: pieces that belong one behind the other, as much as memory holds. They are copied, unless
 * the rank kept the same before. whole 0: whoever takes this rank's place needs what the first rank keeps as well.
 * TRIBUTARY_LIMIT: there is not so much memory. */
typedef struct tributary_piece {
  const void* data;
  size_t size;
} tributary_piece;
TRIBUTARY_API tributary_status tributary_keep_large(tributary_session* session, uint64_t round, const void* state,
                                                    size_t size, const tributary_piece* pieces, size_t count,
                                                    int32_t whole);
/* The round of the next snapshot, once that has been named: then every rank's state of it is to be whole. Else 0. */
TRIBUTARY_API uint64_t tributary_wanted_round(const tributary_session* session);

/* What was kept of resume_round, with its large part, which the call waits for. TRIBUTARY_UNAVAILABLE: that is lost, or
 * the view is over. */
typedef struct tributary_kept_state {
  size_t size; /* sizeof(tributary_kept_state) */
  const void* state;
  size_t state_size; /* 0: nothing is known of it */
  const void* large;
  size_t large_size;
  int32_t whole;
} tributary_kept_state;
TRIBUTARY_API tributary_status tributary_get_kept(const tributary_session* session, tributary_kept_state* kept);
/* What one rank keeps of resume_round for all who have nothing whole: in a fresh job rank 0, else the first rank that
 * has it (tributary_view.first_state). Waits for it. */
TRIBUTARY_API tributary_status tributary_get_kept_of_first(const tributary_session* session,
                                                           tributary_kept_state* kept);
/* There is no round after this one. Every rank says so before its first tributary_ready() of that round. */
TRIBUTARY_API tributary_status tributary_last_round(tributary_session* session, uint64_t round);

/* A figure of a round, a mean over `samples` of this rank ("loss"): status and metrics of the cluster show its mean
 * over all ranks. TRIBUTARY_LIMIT: more than 32 names. */
TRIBUTARY_API tributary_status tributary_log(tributary_session* session, uint64_t round, const char* name, double mean,
                                             uint64_t samples);

#define TRIBUTARY_CONFIGURED (-1.0)
/* Weight decay and momentum of the steps of a group (tributary_tensor.group), for tributary_ready() from now on. A new
 * session has them as the job has, which TRIBUTARY_CONFIGURED stands for. momentum: SGD's; beta1 of Adam, AdamW, Lion.
 * The same on all ranks. Not while another thread is in tributary_ready() of the group's tensors.
 * TRIBUTARY_INVALID_ARGUMENT: there is no such group, or the job's optimizer does not take the values. SGD's momentum
 * stays 0, or above 0. */
TRIBUTARY_API tributary_status tributary_group_settings(tributary_session* session, uint32_t group, double weight_decay,
                                                        double momentum);

#define TRIBUTARY_SCHEDULED_RATE (-1.0)
/* The gradient is final. weight: of how many samples it is the sum, the same for all tensors of a round. rate: the
 * learning rate of the tensor's step, the same for all tensors of a group and on all ranks;
 * TRIBUTARY_SCHEDULED_RATE: as the job's [schedule] says. Once for every tensor and round. */
TRIBUTARY_API tributary_status tributary_ready(tributary_session* session, size_t tensor, uint64_t weight, double rate);

/* The same as soon as what is on `stream` now is done: a cudaStream_t of tributary_options.device, which is to be there
 * until tributary_wait() of the tensor or tributary_destroy() has returned, and the same one in all threads (no
 * cudaStreamPerThread). Any memory that the gradient is copied from is the caller's again
 * then. A device that fails is told by that wait. Wants tributary_options.device. */
TRIBUTARY_API tributary_status tributary_ready_after(tributary_session* session, size_t tensor, uint64_t weight,
                                                     double rate, void* stream);

#define TRIBUTARY_ALL_TENSORS ((size_t)-1)
typedef enum tributary_step {
  TRIBUTARY_CONTINUE = 0,
  TRIBUTARY_STOP_REQUESTED = 1, /* this round is complete: finish with TRIBUTARY_LEAVES_STOPPED; it can go on later */
  TRIBUTARY_VIEW_STOPPED = 2,   /* ended in good order; what came since the last complete round is void */
  TRIBUTARY_RESTART = 3,        /* a member was lost: destroy the session, attach again, go on from resume_round */
  TRIBUTARY_TRAINED = 4         /* as VIEW_STOPPED, because a rank finished for all: finish with TRIBUTARY_FINISHED */
} tributary_step;
/* Blocks until the answer to the last tributary_ready() of the tensor, or of all, is there. */
TRIBUTARY_API tributary_status tributary_wait(tributary_session* session, size_t tensor, tributary_step* step);

/* A small value of every rank, given to all: all ranks call it with the same round and index, each with its own bytes,
 * at most 64 KiB, and get those of all ranks: values[r] is rank r's, valid until the session's next call. Blocks until
 * they are there.
 * round: the newest that is complete for the program. index: of its calls since that round. A rank that
 * begins again at an earlier call, because its process or its view was lost, asks again, and gets the same bytes without
 * the others; of an elastic job then, those of the ranks that there were. With another step than TRIBUTARY_CONTINUE
 * there are no values. TRIBUTARY_LIMIT: too many bytes, of this rank or (4 MiB) of all. TRIBUTARY_INVALID_ARGUMENT:
 * ranks wait for different values. */
typedef struct tributary_value {
  const void* data;
  size_t size;
} tributary_value;
TRIBUTARY_API tributary_status tributary_gather(tributary_session* session, uint64_t round, uint32_t index,
                                                const void* data, size_t size, const tributary_value** values,
                                                size_t* count, tributary_step* step);

/* Tells what a gather came to in an earlier process of this rank, as that process kept it: values[r] is rank r's. The
 * answers to the newest rounds are known as long as a daemon or a trainer of the job lives. After that, ranks that begin
 * at an earlier call than this one may ask for it. After tributary_start(). */
TRIBUTARY_API tributary_status tributary_gathered(tributary_session* session, uint64_t round, uint32_t index,
                                                  const tributary_value* values, size_t count);

/* Jobs with a gate: what was decided about a round. */
typedef struct tributary_gate {
  size_t size;        /* sizeof(tributary_gate) */
  uint32_t known;     /* 0: nothing is; all else is 0 then */
  uint32_t skipped;   /* 1: a gradient was not finite, and the round changed nothing */
  double norm;        /* global, of the mean gradient, before clipping */
  double coefficient; /* that it was multiplied by */
  float loss_scale;   /* for the next round's loss */
} tributary_gate;
TRIBUTARY_API tributary_status tributary_get_gate(const tributary_session* session, uint64_t round,
                                                  tributary_gate* gate);

/* Why the view ended, after TRIBUTARY_VIEW_STOPPED or TRIBUTARY_RESTART, or after a rank that stopped has finished; ""
 * if nobody has said so. Valid until the next call. */
TRIBUTARY_API const char* tributary_stop_reason(tributary_session* session);

/* Totals of this node since the attach. Any thread. */
typedef struct tributary_stats {
  size_t size; /* sizeof(tributary_stats) */
  uint64_t reduce_ns, bytes_pushed, bytes_pulled;
} tributary_stats;
TRIBUTARY_API tributary_status tributary_get_stats(const tributary_session* session, tributary_stats* stats);

typedef enum tributary_leave {
  TRIBUTARY_FINISHED = 0,       /* training is complete */
  TRIBUTARY_LEAVES_STOPPED = 1, /* asked to stop; may come back */
  TRIBUTARY_LEAVES_FAILED = 2,
  TRIBUTARY_FINISHES_ALL = 3, /* training is complete, for ranks that have not left, too: they get TRIBUTARY_TRAINED */
  TRIBUTARY_LEAVES_MAX = 0x7fffffff /* no kind of leave: the type is as wide as an int, and others are refused */
} tributary_leave;
/* Blocks until the worker has taken note. message: why, which every rank is told; NULL: nothing. */
TRIBUTARY_API tributary_status tributary_finish(tributary_session* session, tributary_leave leave, const char* message);
/* After tributary_finish(): blocks until the state that the job ended with is saved. TRIBUTARY_STORE: it is not. */
TRIBUTARY_API tributary_status tributary_saved(tributary_session* session);

#ifdef __cplusplus
}
#endif
#endif
