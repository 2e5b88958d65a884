/* librabbitmq against a broker: publish, confirm, return, a retry through a TTL queue, x-death.
 *
 * usage: librabbitmq_client HOST PORT; prints one JSON object
 */
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static amqp_connection_state_t line;

static void die(const char *what) { fprintf(stderr, "librabbitmq_client: %s\n", what); exit(1); }
static void must_reply(const char *what) {
    if (amqp_get_rpc_reply(line).reply_type != AMQP_RESPONSE_NORMAL) die(what);
}
static amqp_table_entry_t text(const char *key, const char *value) {
    amqp_table_entry_t entry = {.key = amqp_cstring_bytes(key)};
    entry.value.kind = AMQP_FIELD_KIND_UTF8;
    entry.value.value.bytes = amqp_cstring_bytes(value);
    return entry;
}
static void declare(const char *queue, const char *dead_to, int ttl) {
    amqp_table_entry_t entries[3] = {text("x-dead-letter-exchange", ""),
                                     text("x-dead-letter-routing-key", dead_to)};
    entries[2].key = amqp_cstring_bytes("x-message-ttl");
    entries[2].value.kind = AMQP_FIELD_KIND_I32;
    entries[2].value.value.i32 = ttl;
    amqp_table_t arguments = {.num_entries = ttl ? 3 : 2, .entries = entries};
    amqp_queue_declare(line, 1, amqp_cstring_bytes(queue), 0, 1, 0, 0, arguments);
    must_reply("queue.declare");
}
static void publish(const char *key) {
    amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
    if (amqp_basic_publish(line, 1, amqp_empty_bytes, amqp_cstring_bytes(key), 1, 0, &properties,
                           amqp_cstring_bytes("an order")) < 0) die("basic.publish");
}
static int next_method(amqp_frame_t *frame) {
    do {
        if (amqp_simple_wait_frame(line, frame) < 0) die("waiting for an answer");
    } while (frame->frame_type != AMQP_FRAME_METHOD);
    return frame->payload.method.id;
}
static int await_confirm(int *returned) {
    amqp_frame_t frame;
    int id = next_method(&frame);
    if (id == AMQP_BASIC_RETURN_METHOD) {
        amqp_message_t message;
        *returned = ((amqp_basic_return_t *)frame.payload.method.decoded)->reply_code;
        amqp_read_message(line, 1, &message, 0);
        amqp_destroy_message(&message);
        id = next_method(&frame);
    }
    return id == AMQP_BASIC_ACK_METHOD;
}
static void take(amqp_envelope_t *envelope) {
    amqp_maybe_release_buffers(line);
    if (amqp_consume_message(line, envelope, NULL, 0).reply_type != AMQP_RESPONSE_NORMAL)
        die("basic.deliver expected");
}
static amqp_field_value_t *entry(amqp_table_t *table, const char *key) {
    for (int n = 0; n < table->num_entries; n++)
        if (table->entries[n].key.len == strlen(key) && !memcmp(table->entries[n].key.bytes, key, strlen(key)))
            return &table->entries[n].value;
    die("a header is missing");
    return NULL;
}
static void print_deaths(amqp_table_t *headers) {
    amqp_array_t *deaths = &entry(headers, "x-death")->value.array;
    printf("[");
    for (int n = 0; n < deaths->num_entries; n++) {
        amqp_table_t *death = &deaths->entries[n].value.table;
        amqp_bytes_t queue = entry(death, "queue")->value.bytes, reason = entry(death, "reason")->value.bytes;
        printf("%s[\"%.*s\", \"%.*s\"]", n ? ", " : "", (int)queue.len, (char *)queue.bytes,
               (int)reason.len, (char *)reason.bytes);
    }
    printf("]");
}

int main(int argc, char **argv) {
    amqp_envelope_t envelope;
    int returned = 0;
    if (argc != 3) die("two arguments expected");
    line = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(line);
    if (!socket || amqp_socket_open(socket, argv[1], atoi(argv[2]))) die("cannot connect");
    if (amqp_login(line, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type !=
        AMQP_RESPONSE_NORMAL) die("login refused");
    amqp_channel_open(line, 1);
    must_reply("channel.open");
    amqp_confirm_select(line, 1);
    must_reply("confirm.select");
    declare("work", "retry", 0);
    declare("retry", "work", 200);
    publish("work");
    int confirmed = await_confirm(&returned);
    publish("nowhere");
    await_confirm(&returned);
    amqp_basic_consume(line, 1, amqp_cstring_bytes("work"), amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
    must_reply("basic.consume");
    take(&envelope);
    amqp_basic_nack(line, 1, envelope.delivery_tag, 0, 0);
    amqp_destroy_envelope(&envelope);
    take(&envelope);
    printf("{\"confirmed\": %s, \"returned\": %d, \"body\": \"%.*s\", \"deaths\": ", confirmed ? "true" : "false",
           returned, (int)envelope.message.body.len, (char *)envelope.message.body.bytes);
    print_deaths(&envelope.message.properties.headers);
    printf("}\n");
    amqp_basic_ack(line, 1, envelope.delivery_tag, 0);
    amqp_destroy_envelope(&envelope);
    amqp_channel_close(line, 1, AMQP_REPLY_SUCCESS);
    amqp_connection_close(line, AMQP_REPLY_SUCCESS);
    return 0;
}
