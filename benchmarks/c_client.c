/* The reference: the same work with librabbitmq, single-threaded, one connection, one channel.
 *
 * usage: c_client SCENARIO HOST PORT VHOST QUEUE TARGET COUNT PREFETCH WINDOW  < body
 * prints {"count": …, "seconds": …, "cpu_seconds": …}
 */
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static amqp_connection_state_t line;
static const char *scenario, *queue, *target;
static long count, prefetch, window;
static char body_bytes[1 << 20];
static amqp_bytes_t body;
static double wall0, cpu0;

static void die(const char *what) { fprintf(stderr, "c_client: %s\n", what); exit(1); }
static void must(int status, const char *what) {
    if (status < 0) { fprintf(stderr, "c_client: %s: %s\n", what, amqp_error_string2(status)); exit(1); }
}
static void must_reply(const char *what) {
    amqp_rpc_reply_t reply = amqp_get_rpc_reply(line);
    if (reply.reply_type != AMQP_RESPONSE_NORMAL) die(what);
}

static double wall(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}
static double cpu(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}
static void begin(void) { wall0 = wall(); cpu0 = cpu(); }
static void report(void) {
    printf("{\"count\": %ld, \"seconds\": %.6f, \"cpu_seconds\": %.6f}\n", count, wall() - wall0, cpu() - cpu0);
}

static void connect_to(const char *host, int port, const char *vhost) {
    line = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(line);
    if (!socket || amqp_socket_open(socket, host, port)) die("cannot connect");
    amqp_rpc_reply_t login = amqp_login(line, vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest");
    if (login.reply_type != AMQP_RESPONSE_NORMAL) die("login refused");
    amqp_channel_open(line, 1);
    must_reply("channel.open");
}
static void select_confirms(void) { amqp_confirm_select(line, 1); must_reply("confirm.select"); }
static void start_consumer(void) {
    amqp_basic_qos(line, 1, 0, prefetch, 0);
    must_reply("basic.qos");
    begin();
    amqp_basic_consume(line, 1, amqp_cstring_bytes(queue), amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
    must_reply("basic.consume");
}

static void send_as(const char *exchange, const char *key, amqp_bytes_t what, amqp_basic_properties_t *properties) {
    must(amqp_basic_publish(line, 1, amqp_cstring_bytes(exchange), amqp_cstring_bytes(key), 1, 0, properties, what),
         "basic.publish");
}
/* Real messages differ, so each message of a filled queue has an ID. */
static int with_ids = 0;
static void send_to(const char *exchange, const char *key, amqp_bytes_t what) {
    static long number = 0;
    char id[32];
    amqp_basic_properties_t properties;
    properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_CONTENT_TYPE_FLAG;
    properties.delivery_mode = 2;
    properties.content_type = amqp_cstring_bytes("application/json");
    if (with_ids) {
        snprintf(id, sizeof id, "m-%ld", ++number);
        properties._flags |= AMQP_BASIC_MESSAGE_ID_FLAG;
        properties.message_id = amqp_cstring_bytes(id);
    }
    send_as(exchange, key, what, &properties);
}

/* Confirms may arrive out of order and in groups, so each publish is tracked. */
static char *confirmed;
static long lowest = 1, outstanding = 0;
static void (*on_confirmed)(long number);
static void confirm_one(long number) {
    if (confirmed[number]) return;
    confirmed[number] = 1;
    outstanding--;
    if (on_confirmed) on_confirmed(number);
}
static void handle_ack(amqp_basic_ack_t *ack) {
    long tag = (long)ack->delivery_tag;
    if (ack->multiple) for (long n = lowest; n <= tag; n++) confirm_one(n);
    else confirm_one(tag);
    while (lowest <= count && confirmed[lowest]) lowest++;
}
static void read_confirms(void) {
    amqp_frame_t frame;
    do {
        must(amqp_simple_wait_frame(line, &frame), "waiting for confirms");
        if (frame.frame_type != AMQP_FRAME_METHOD) continue;
        if (frame.payload.method.id != AMQP_BASIC_ACK_METHOD) die("a publish was not confirmed");
        handle_ack((amqp_basic_ack_t *)frame.payload.method.decoded);
        amqp_maybe_release_buffers(line);
    } while (amqp_frames_enqueued(line) || amqp_data_in_buffer(line));
}

static void consume(int every) {
    amqp_envelope_t envelope;
    start_consumer();
    for (long n = 1; n <= count; n++) {
        amqp_maybe_release_buffers(line);
        amqp_rpc_reply_t got = amqp_consume_message(line, &envelope, NULL, 0);
        if (got.reply_type != AMQP_RESPONSE_NORMAL) die("basic.deliver expected");
        if (n % every == 0 || n == count) must(amqp_basic_ack(line, 1, envelope.delivery_tag, every > 1), "basic.ack");
        amqp_destroy_envelope(&envelope);
    }
}
static void publish(long in_flight, const char *exchange, const char *key) {
    select_confirms();
    begin();
    for (long sent = 0; sent < count || outstanding > 0;) {
        for (; sent < count && outstanding < in_flight; sent++, outstanding++) send_to(exchange, key, body);
        read_confirms();
    }
}
/* Confirmed as well: a closing channel drops messages that it has not yet passed to a quorum queue. */
static void fill(void) {
    with_ids = 1;
    publish(window, target, *target ? "first" : queue);
}
/* For the same reason acks need a moment before the channel closes, which is not measured. */
static void linger(void) {
    struct timespec moment = {0, 300 * 1000 * 1000};
    nanosleep(&moment, NULL);
}

static uint64_t *tags;
static void settle(long number) { must(amqp_basic_ack(line, 1, tags[number], 0), "basic.ack"); }
static void move(int keeps_headers) {
    amqp_envelope_t envelope;
    long sent = 0;
    tags = calloc(count + 1, sizeof *tags);
    on_confirmed = settle;
    select_confirms();
    start_consumer();
    while (lowest <= count) {
        amqp_maybe_release_buffers(line);
        amqp_rpc_reply_t got = amqp_consume_message(line, &envelope, NULL, 0);
        if (got.reply_type == AMQP_RESPONSE_NORMAL) {
            tags[++sent] = envelope.delivery_tag;
            outstanding++;
            if (keeps_headers) send_as("", target, envelope.message.body, &envelope.message.properties);
            else send_to("", target, envelope.message.body);
            amqp_destroy_envelope(&envelope);
        } else if (got.library_error == AMQP_STATUS_UNEXPECTED_STATE) {
            amqp_frame_t frame;
            must(amqp_simple_wait_frame(line, &frame), "waiting for a confirm");
            if (frame.frame_type != AMQP_FRAME_METHOD || frame.payload.method.id != AMQP_BASIC_ACK_METHOD)
                die("a publish was not confirmed");
            handle_ack((amqp_basic_ack_t *)frame.payload.method.decoded);
        } else die("basic.deliver expected");
    }
}
static void retry(void) {
    amqp_envelope_t envelope;
    start_consumer();
    for (long done = 0; done < count;) {
        amqp_maybe_release_buffers(line);
        amqp_rpc_reply_t got = amqp_consume_message(line, &envelope, NULL, 0);
        if (got.reply_type != AMQP_RESPONSE_NORMAL) die("basic.deliver expected");
        int first = envelope.routing_key.len == 5 && !memcmp(envelope.routing_key.bytes, "first", 5);
        if (first) must(amqp_basic_nack(line, 1, envelope.delivery_tag, 0, 0), "basic.nack");
        else { must(amqp_basic_ack(line, 1, envelope.delivery_tag, 0), "basic.ack"); done++; }
        amqp_destroy_envelope(&envelope);
    }
}

int main(int argc, char **argv) {
    if (argc != 10) die("nine arguments expected");
    scenario = argv[1]; queue = argv[5]; target = argv[6];
    count = atol(argv[7]); prefetch = atol(argv[8]); window = atol(argv[9]);
    body.bytes = body_bytes;
    body.len = fread(body_bytes, 1, sizeof body_bytes, stdin);
    confirmed = calloc(count + 2, 1);
    connect_to(argv[2], atoi(argv[3]), argv[4]);
    if (!strcmp(scenario, "consume")) consume(1);
    else if (!strcmp(scenario, "consume-50")) consume(50);
    else if (!strcmp(scenario, "publish")) publish(window, "", queue);
    else if (!strcmp(scenario, "publish-one")) publish(1, "", queue);
    else if (!strcmp(scenario, "move")) move(0);
    else if (!strcmp(scenario, "move-kept")) move(1);
    else if (!strcmp(scenario, "retry")) retry();
    else if (!strcmp(scenario, "fill")) fill();
    else die("unknown scenario");
    report();
    linger();
    amqp_channel_close(line, 1, AMQP_REPLY_SUCCESS);
    amqp_connection_close(line, AMQP_REPLY_SUCCESS);
    return 0;
}
