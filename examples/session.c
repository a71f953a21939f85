/* A trainer in C: linear regression by gradient descent, one process a rank. Start it as torchrun starts its ranks
 * (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK), on each node with a worker daemon (TRIBUTARY_SOCKET).
 *
 *   session [ROUNDS]          prints the loss over all samples, the same bits on every rank
 *
 * Exit status: 0 trained to the end, 75 stopped cleanly (the same command continues), 1 failed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>
#include <time.h>
#include <tributary.h>

enum { FEATURES = 8, SAMPLES = 512, ROUNDS = 300, EXIT_STOPPED = 75 };

static uint32_t round_done; /* since the rank attached */
static char reason[256];    /* why the view ended, if a member was lost */
enum { SLOPES, OFFSET, TENSORS };

static const char job[] =
    "[job]\n"
    "name = \"linear-regression\"\n"
    "[optimizer]\n"
    "name = \"sgd\"\n"
    "lr = 0.3\n";

static float inputs[SAMPLES][FEATURES], targets[SAMPLES];

/* In [-1, 1), from a seed of its own: every rank makes the same data. */
static float next_random(void) {
  static uint64_t state = 20240607;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (float)(int32_t)(state >> 32) / 2147483648.0f;
}

static void make_data(void) {
  float slopes[FEATURES];
  for (int f = 0; f < FEATURES; ++f) slopes[f] = 3.0f * next_random();
  for (int i = 0; i < SAMPLES; ++i) {
    targets[i] = 0.5f;
    for (int f = 0; f < FEATURES; ++f) {
      inputs[i][f] = next_random();
      targets[i] += slopes[f] * inputs[i][f];
    }
  }
}

static float error_of(int sample, const float* slopes, const float* offset) {
  float predicted = *offset;
  for (int f = 0; f < FEATURES; ++f) predicted += slopes[f] * inputs[sample][f];
  return predicted - targets[sample];
}

/* The SUM over this rank's samples, every world_size-th of all. Returns how many they are. */
static uint64_t write_gradients(tributary_session* session, const tributary_view* view) {
  const float *slopes = tributary_parameters(session, SLOPES), *offset = tributary_parameters(session, OFFSET);
  float *of_slopes = tributary_gradient(session, SLOPES), *of_offset = tributary_gradient(session, OFFSET);
  uint64_t samples = 0;
  for (int f = 0; f < FEATURES; ++f) of_slopes[f] = 0.0f;
  *of_offset = 0.0f;
  for (uint32_t i = view->rank; i < SAMPLES; i += view->world_size, ++samples) {
    const float error = error_of((int)i, slopes, offset);
    for (int f = 0; f < FEATURES; ++f) of_slopes[f] += error * inputs[i][f];
    *of_offset += error;
  }
  return samples;
}

static double mean_loss(const tributary_session* session) {
  const float *slopes = tributary_parameters(session, SLOPES), *offset = tributary_parameters(session, OFFSET);
  double sum = 0.0;
  for (int i = 0; i < SAMPLES; ++i) {
    const double error = error_of(i, slopes, offset);
    sum += error * error;
  }
  return sum / SAMPLES;
}

/* From where the job is to its last round. TRIBUTARY_RESTART: a member was lost; *round: complete so far. */
static tributary_status train(tributary_session* session, uint64_t rounds, uint64_t* round, tributary_step* step) {
  tributary_view view = {.size = sizeof view};
  tributary_status status = tributary_get_view(session, &view);
  if (status != TRIBUTARY_OK) return status;
  if (view.fresh && view.rank == 0) {
    float *slopes = tributary_initial(session, SLOPES), *offset = tributary_initial(session, OFFSET);
    for (int f = 0; f < FEATURES; ++f) slopes[f] = 0.0f;
    *offset = 0.0f;
  }
  status = tributary_start(session);
  if (status == TRIBUTARY_OK) status = tributary_last_round(session, rounds);
  *step = TRIBUTARY_CONTINUE;
  *round = view.resume_round;
  while (status == TRIBUTARY_OK && *step == TRIBUTARY_CONTINUE && *round < rounds) {
    const uint64_t samples = write_gradients(session, &view);
    for (size_t tensor = 0; status == TRIBUTARY_OK && tensor < TENSORS; ++tensor) {
      status = tributary_ready(session, tensor, samples, TRIBUTARY_SCHEDULED_RATE);
    }
    if (status == TRIBUTARY_OK) status = tributary_wait(session, TRIBUTARY_ALL_TENSORS, step);
    if (status == TRIBUTARY_OK && (*step == TRIBUTARY_CONTINUE || *step == TRIBUTARY_STOP_REQUESTED)) {
      ++*round;
      round_done = 1;
    }
  }
  return status;
}

/* One session. TRIBUTARY_UNAVAILABLE: attaching again may help; TRIBUTARY_STOPPED: a clean stop. */
static tributary_status run(const tributary_options* options, uint64_t rounds) {
  tributary_session* session = NULL;
  tributary_status status = tributary_attach(options, &session);
  if (status != TRIBUTARY_OK) return status;
  uint64_t round = 0;
  tributary_step step = TRIBUTARY_CONTINUE;
  status = train(session, rounds, &round, &step);
  if (status == TRIBUTARY_OK && step == TRIBUTARY_RESTART) {
    snprintf(reason, sizeof reason, "%s", tributary_stop_reason(session));
    fprintf(stderr, "attaching again after round %llu: %s\n", (unsigned long long)round, reason);
    tributary_destroy(session);
    return TRIBUTARY_UNAVAILABLE;
  }
  if (status == TRIBUTARY_OK) {
    const int finished = round >= rounds;
    const double loss = mean_loss(session);
    status = tributary_finish(session, finished ? TRIBUTARY_FINISHED : TRIBUTARY_LEAVES_STOPPED, NULL);
    if (status == TRIBUTARY_OK) status = tributary_saved(session);
    if (status == TRIBUTARY_OK) {
      printf("round %llu, loss %.9g\n", (unsigned long long)round, loss);
      if (!finished) status = TRIBUTARY_STOPPED;
    }
  }
  tributary_destroy(session);
  return status;
}

static void note(const char* text, void* context) {
  (void)context;
  fprintf(stderr, "%s\n", text);
}

int main(int argc, char** argv) {
  const uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : ROUNDS;
  const uint64_t shape[] = {FEATURES};
  const tributary_tensor tensors[TENSORS] = {
      {.size = sizeof tensors[0], .name = "slopes", .shape = shape, .dimensions = 1},
      {.size = sizeof tensors[0], .name = "offset", .dimensions = 0},
  };
  const tributary_options options = {.size = sizeof options,
                                     .job = job,
                                     .tensors = tensors,
                                     .tensor_count = TENSORS,
                                     .from_environment = 1,
                                     .device = -1,
                                     .note = note,
                                     .recovery = tributary_recovery_handle_create()};
  make_data();
  tributary_status status;
  while ((status = run(&options, rounds)) != TRIBUTARY_OK) {
    uint32_t pause_ms = 0;
    status = tributary_retry(options.recovery, status, *reason ? reason : NULL, round_done, &pause_ms);
    if (status != TRIBUTARY_OK) break;
    round_done = 0;
    *reason = '\0';
    thrd_sleep(&(struct timespec){.tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000L}, NULL);
  }
  tributary_recovery_handle_destroy(options.recovery);
  if (status == TRIBUTARY_OK) return EXIT_SUCCESS;
  if (status == TRIBUTARY_STOPPED) return EXIT_STOPPED;
  fprintf(stderr, "%s: %s\n", tributary_status_name(status), tributary_last_error());
  return EXIT_FAILURE;
}
