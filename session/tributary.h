/* tributary.h: how a trainer in C, or in any language that calls C, attaches to the worker daemon of its node. The
 * functions are those of tributary::Session; session/session.h has more about rounds and memory.
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
 * failed call (a returned NULL is a failure, too). A struct begins with its size: a library newer than the program
 * reads and writes only members that the program has; an older one refuses members that are set and unknown to it.
 * Returned pointers belong to the session and end with it. Thread rule: one thread at a time for a session, except
 * that tributary_ready() and tributary_ready_after() of different tensors may be called from different threads.
 * A session belongs to the process that attached. When that process ends the rank is gone, whatever children it has;
 * children that it forks have no part in the session.
 *
 * A trainer on a GPU sets tributary_options.device. With tributary_view.on_device gradients and parameters are memory
 * of that device; else they are host memory, pinned if the system allows it, to be copied to and fro on a stream. In
 * both cases the trainer calls tributary_ready_after() with that stream instead of tributary_ready(). Work put on
 * streams after tributary_wait() sees the new parameters. Work that uses a session's memory must be over before
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

/* TRIBUTARY_OK, or 1 + the number of the error (common/base/result.h): stable, and new ones are added at the end.
 * Errors that are not listed here have a name, too; a program can only show their sentence. */
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
#define TRIBUTARY_STOPPED 19     /* the job was stopped cleanly */
#define TRIBUTARY_LIMIT 20       /* a configured bound is reached */
#define TRIBUTARY_NO_DEVICE 22   /* the GPU has failed, or there is none, or no library for it */

typedef struct tributary_session tributary_session;
typedef struct tributary_recovery_handle tributary_recovery_handle;

/* The library's release, as "0.2.0". */
TRIBUTARY_API const char* tributary_version(void);
/* The error of this thread's last failed call, a sentence with the thing, the value and the cure; "" before any. Valid
 * until the thread's next failed call. */
TRIBUTARY_API const char* tributary_last_error(void);
/* The status' name, as "TRIBUTARY_UNAVAILABLE"; "TRIBUTARY_?" for one that this library does not know. */
TRIBUTARY_API const char* tributary_status_name(tributary_status status);

typedef struct tributary_tensor {
  size_t size;           /* sizeof(tributary_tensor) */
  const char* name;      /* unique within the job */
  const uint64_t* shape; /* its product is the number of elements, all of them fp32 */
  uint32_t dimensions;   /* 0: a scalar */
  uint32_t group;        /* 0: the job's [optimizer]; k: its k-th [[groups]] */
  /* The model ranks that hold it, ascending; NULL: all. All ranks declare all tensors; a rank must not name tensors
   * afterwards that it does not hold. */
  const uint32_t* holders;
  uint32_t holder_count;
} tributary_tensor;

typedef struct tributary_options {
  size_t size; /* sizeof(tributary_options) */
  /* The worker's socket. NULL: TRIBUTARY_SOCKET of the environment, else the default of this user's workers,
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
  uint32_t gradients_move;    /* 1: the trainer calls tributary_gradient() in every round, and writes all of it */
  int32_t device; /* the CUDA device, as this process counts, that the worker is asked to lend memory of; -1: none */
  const char* computes_with; /* software of the gradients ("torch 2.13 cpu"): compared with other ranks'; NULL: not */
  /* Called with what an attach waits for, and what makes copies slower; may be NULL. */
  void (*note)(const char* text, void* context);
  void* note_context;
  tributary_recovery_handle* recovery; /* NULL: nothing is kept */
  uint32_t model_rank; /* which part of the model this rank holds, with pipeline or tensor parallelism; else 0 */
  /* Set by a signal handler, and read while the attach waits: not 0 ends it with TRIBUTARY_STOPPED. Must live as long
   * as the session; NULL: nothing ends it. */
  const volatile int* stops;
} tributary_options;

/* State that outlives a session: memory that the node's next worker needs if this one is killed. A trainer that gives
 * the same handle to every attach of a job loses no round then. Destroy it after the last session that uses it. */
TRIBUTARY_API tributary_recovery_handle* tributary_recovery_handle_create(void);
TRIBUTARY_API void tributary_recovery_handle_destroy(tributary_recovery_handle* recovery);

/* Attaches; on failure *session is NULL. TRIBUTARY_UNAVAILABLE, TRIBUTARY_TIMEOUT and TRIBUTARY_STALE_VIEW: attaching
 * again may help. */
TRIBUTARY_API tributary_status tributary_attach(const tributary_options* options, tributary_session** session);
/* Asks whether a rank attaches again whose attach failed, or whose session is destroyed. `why`: the call's status;
 * TRIBUTARY_UNAVAILABLE after TRIBUTARY_RESTART. `reason`: the same in words (tributary_stop_reason()), for the error;
 * NULL: tributary_last_error(). `round_done`: 1 if a round was completed since the last call. TRIBUTARY_OK: it attaches
 * again in *pause_ms. `why`: attaching again cannot help. TRIBUTARY_UNAVAILABLE: a minute and 20 attaches have brought
 * no round. The pause grows to 5 s; it is shorter while the next view of an elastic job waits for this rank. */
TRIBUTARY_API tributary_status tributary_retry(tributary_recovery_handle* recovery, tributary_status why,
                                               const char* reason, uint32_t round_done, uint32_t* pause_ms);
/* Destroys the session. Without tributary_finish() before, the rank counts as failed. NULL is allowed. */
TRIBUTARY_API void tributary_destroy(tributary_session* session);

/* The session's view; does not change. */
typedef struct tributary_view {
  size_t size; /* sizeof(tributary_view) */
  uint32_t rank, world_size, local_rank, local_world_size, node_rank;
  uint32_t fresh;        /* 1: no rank has parameters yet: the first that holds a tensor gives its initial values */
  uint32_t on_device;    /* 1: gradients and parameters are memory of tributary_options.device */
  uint64_t resume_round; /* the round of the parameters after tributary_start(); 0 for a fresh job */
  uint64_t job;          /* the coordinator's number for it */
  uint32_t first_state;  /* TRIBUTARY_FIRST_: whether one rank's state comes to those that have none */
} tributary_view;
#define TRIBUTARY_FIRST_NONE 0  /* no rank has any */
#define TRIBUTARY_FIRST_COMES 1 /* tributary_get_kept_of_first() waits for it */
#define TRIBUTARY_FIRST_GIVEN \
  2 /* this rank gives it: it keeps a whole state of resume_round before its first ready() */
TRIBUTARY_API tributary_status tributary_get_view(const tributary_session* session, tributary_view* view);

/* Host memory for a tensor's initial values. NULL: not fresh, another rank gives them, after tributary_start(), no such
 * tensor. */
TRIBUTARY_API float* tributary_initial(tributary_session* session, size_t tensor);
/* Blocks until the parameters of resume_round are there. */
TRIBUTARY_API tributary_status tributary_start(tributary_session* session);

/* Memory for the tensor's gradient of its next round, and memory of its parameters; on a device if
 * tributary_view.on_device. Between tributary_ready() and tributary_wait() of the tensor, do not touch its gradient,
 * and do not read its parameters. NULL: no such tensor. */
TRIBUTARY_API float* tributary_gradient(tributary_session* session, size_t tensor);
TRIBUTARY_API const float* tributary_parameters(const tributary_session* session, size_t tensor);

/* Moves tributary_parameters() to a view that stays readable, with its last values, until it is released, also after
 * tributary_destroy(). A page of it that this process writes or pins (cudaHostRegister, mlock) is private from then on,
 * and shows no later round. Call it before the first tributary_parameters(). On a device: NULL. */
typedef struct tributary_parameter_memory tributary_parameter_memory;
TRIBUTARY_API tributary_parameter_memory* tributary_hold_parameters(tributary_session* session);
TRIBUTARY_API void tributary_release_parameters(tributary_parameter_memory* memory);

/* Keeps the state that this rank needs, besides the parameters, to continue after `round`. The worker holds it for the
 * process that takes this rank's place on the node, and snapshots of the round include it. Call it after
 * tributary_start(), and before the next round's first tributary_ready(); the last call counts. TRIBUTARY_LIMIT: more
 * than 256 KiB less 32 bytes. */
TRIBUTARY_API tributary_status tributary_keep(tributary_session* session, uint64_t round, const void* state,
                                              size_t size);
/* Returns the state kept for resume_round; *size 0: none is known. */
TRIBUTARY_API tributary_status tributary_kept(const tributary_session* session, const void** state, size_t* size);

/* The same with a large part: consecutive pieces, as much as memory holds. They are copied, unless the rank kept the
 * same before. whole 0: the process that takes this rank's place needs the first rank's state as well. TRIBUTARY_LIMIT:
 * there is not so much memory. */
typedef struct tributary_piece {
  const void* data;
  size_t size;
} tributary_piece;
TRIBUTARY_API tributary_status tributary_keep_large(tributary_session* session, uint64_t round, const void* state,
                                                    size_t size, const tributary_piece* pieces, size_t count,
                                                    int32_t whole);
/* The round of the next snapshot, for which every rank's state is to be whole; 0: none is named. */
TRIBUTARY_API uint64_t tributary_wanted_round(const tributary_session* session);

/* The state kept for resume_round, with its large part, which the call waits for. TRIBUTARY_UNAVAILABLE: that part is
 * lost, or the view is over. */
typedef struct tributary_kept_state {
  size_t size; /* sizeof(tributary_kept_state) */
  const void* state;
  size_t state_size; /* 0: none is known */
  const void* large;
  size_t large_size;
  int32_t whole;
} tributary_kept_state;
TRIBUTARY_API tributary_status tributary_get_kept(const tributary_session* session, tributary_kept_state* kept);
/* Waits for the state of resume_round that one rank gives to all that have no whole one: rank 0 in a fresh job, else
 * the first rank that has it (tributary_view.first_state). */
TRIBUTARY_API tributary_status tributary_get_kept_of_first(const tributary_session* session,
                                                           tributary_kept_state* kept);
/* Declares the job's last round. Every rank calls it, before its first tributary_ready() of that round. */
TRIBUTARY_API tributary_status tributary_last_round(tributary_session* session, uint64_t round);

/* Reports a figure of a round, a mean over `samples` of this rank ("loss"): status and metrics of the cluster show its
 * mean over all ranks. TRIBUTARY_LIMIT: more than 32 names. */
TRIBUTARY_API tributary_status tributary_log(tributary_session* session, uint64_t round, const char* name, double mean,
                                             uint64_t samples);

#define TRIBUTARY_CONFIGURED (-1.0)
/* Sets weight decay and momentum of a group's steps (tributary_tensor.group), for tributary_ready() from now on. A new
 * session has the job's, which TRIBUTARY_CONFIGURED stands for. momentum: SGD's; beta1 of Adam, AdamW, Lion.
 * The same on all ranks. REQUIRES: no other thread is in tributary_ready() of the group's tensors.
 * TRIBUTARY_INVALID_ARGUMENT: there is no such group, or the job's optimizer does not take the values. SGD's momentum
 * stays 0, or above 0. */
TRIBUTARY_API tributary_status tributary_group_settings(tributary_session* session, uint32_t group, double weight_decay,
                                                        double momentum);

#define TRIBUTARY_SCHEDULED_RATE (-1.0)
/* Declares the tensor's gradient final, once for every tensor and round. weight: how many samples are summed in it, the
 * same for all tensors of a round. rate: the learning rate of the tensor's step, the same for all tensors of a group
 * and on all ranks; TRIBUTARY_SCHEDULED_RATE: of the job's [schedule]. */
TRIBUTARY_API tributary_status tributary_ready(tributary_session* session, size_t tensor, uint64_t weight, double rate);

/* The same as soon as the work now on `stream` is done. `stream`: a cudaStream_t of tributary_options.device, which
 * must exist until tributary_wait() of the tensor or tributary_destroy() has returned, and be the same in all threads
 * (no cudaStreamPerThread). Memory that the gradient is copied from is the caller's again then. If the device fails,
 * the wait returns its error. REQUIRES: tributary_options.device. */
TRIBUTARY_API tributary_status tributary_ready_after(tributary_session* session, size_t tensor, uint64_t weight,
                                                     double rate, void* stream);

#define TRIBUTARY_ALL_TENSORS ((size_t)-1)
typedef enum tributary_step {
  TRIBUTARY_CONTINUE = 0,
  TRIBUTARY_STOP_REQUESTED = 1, /* this round is complete: finish with TRIBUTARY_LEAVES_STOPPED; resumable */
  TRIBUTARY_VIEW_STOPPED = 2,   /* ended cleanly; gradients since the last complete round are void */
  TRIBUTARY_RESTART = 3,        /* a member was lost: destroy the session, attach again, continue from resume_round */
  TRIBUTARY_TRAINED = 4         /* as VIEW_STOPPED, because a rank finished for all: finish with TRIBUTARY_FINISHED */
} tributary_step;
/* Blocks until the answer to the last tributary_ready() of the tensor, or of all, is there. */
TRIBUTARY_API tributary_status tributary_wait(tributary_session* session, size_t tensor, tributary_step* step);

/* Gathers a small value of every rank. All ranks call it with the same round and index, each with its own bytes, at
 * most 64 KiB. It blocks until all ranks' values are there: values[r] is rank r's, valid until the session's next call.
 * round: the newest that is complete for the program. index: of the call since that round. A rank that begins again at
 * an earlier call, because its process or its view was lost, asks again, and gets the same bytes without the others (in
 * an elastic job, of the ranks of that time). With another step than TRIBUTARY_CONTINUE there are no values.
 * TRIBUTARY_LIMIT: too many bytes, of this rank or (4 MiB) of all. TRIBUTARY_INVALID_ARGUMENT: ranks wait for different
 * values. */
typedef struct tributary_value {
  const void* data;
  size_t size;
} tributary_value;
TRIBUTARY_API tributary_status tributary_gather(tributary_session* session, uint64_t round, uint32_t index,
                                                const void* data, size_t size, const tributary_value** values,
                                                size_t* count, tributary_step* step);

/* Gives the result of a gather in an earlier process of this rank, as that process kept it: values[r] is rank r's.
 * Ranks that begin at an earlier call may ask for it. (While a daemon or a trainer of the job lives, answers of the
 * newest rounds are known anyway.) Call it after tributary_start(). */
TRIBUTARY_API tributary_status tributary_gathered(tributary_session* session, uint64_t round, uint32_t index,
                                                  const tributary_value* values, size_t count);

/* Jobs with a gate: the decision about a round. */
typedef struct tributary_gate {
  size_t size;        /* sizeof(tributary_gate) */
  uint32_t known;     /* 0: no decision is known; all else is 0 then */
  uint32_t skipped;   /* 1: a gradient was not finite, and the round changed nothing */
  double norm;        /* global, of the mean gradient, before clipping */
  double coefficient; /* factor of the gradient */
  float loss_scale;   /* for the next round's loss */
} tributary_gate;
TRIBUTARY_API tributary_status tributary_get_gate(const tributary_session* session, uint64_t round,
                                                  tributary_gate* gate);

/* The reason why the view ended, after TRIBUTARY_VIEW_STOPPED or TRIBUTARY_RESTART, or after a rank that stopped has
 * finished; "" if none was given. Valid until the next call. */
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
/* Leaves the job; blocks until the worker has acknowledged. message: the reason, sent to every rank; NULL: none. */
TRIBUTARY_API tributary_status tributary_finish(tributary_session* session, tributary_leave leave, const char* message);
/* After tributary_finish(): blocks until the job's final state is saved. TRIBUTARY_STORE: it is not. */
TRIBUTARY_API tributary_status tributary_saved(tributary_session* session);

#ifdef __cplusplus
}
#endif
#endif
