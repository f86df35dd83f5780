// hiredis as tests/clients.rs drives it: hiredis SOCKET PROTOCOL WAY, where PROTOCOL is 2 or 3 and WAY `alone`,
// `pipeline` or `multi`. A line of stdin is a command, its arguments in hexadecimal; a line of stdout an answer.

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LINE 4096
#define MOST_WORDS 16

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void show(const redisReply *reply) {
    switch (reply->type) {
    case REDIS_REPLY_INTEGER: printf("%lld", reply->integer); break;
    case REDIS_REPLY_ERROR: printf("-%s", reply->str); break;
    case REDIS_REPLY_ARRAY:
        printf("[");
        for (size_t i = 0; i < reply->elements; i++) {
            if (i > 0) printf(" ");
            show(reply->element[i]);
        }
        printf("]");
        break;
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_STRING:
        printf("\"");
        for (size_t i = 0; i < reply->len; i++) {
            unsigned char byte = (unsigned char)reply->str[i];
            printf(byte >= 32 && byte < 127 ? "%c" : "\\x%02x", byte);
        }
        printf("\"");
        break;
    default: printf("a reply of type %d", reply->type);
    }
}

static redisReply *next(redisContext *context) {
    void *reply = NULL;
    if (redisGetReply(context, &reply) != REDIS_OK) die(context->errstr);
    return reply;
}

static void show_next(redisContext *context) {
    redisReply *reply = next(context);
    show(reply);
    printf("\n");
    freeReplyObject(reply);
}

// Appends the command of a line, which it takes apart in place.
static void append(redisContext *context, char *line) {
    const char *words[MOST_WORDS];
    size_t lengths[MOST_WORDS];
    int count = 0;
    for (char *word = strtok(line, " \n"); word != NULL && count < MOST_WORDS; word = strtok(NULL, " \n")) {
        size_t length = strlen(word) / 2;
        for (size_t i = 0; i < length; i++) {
            char digits[] = {word[2 * i], word[2 * i + 1], 0};
            word[i] = (char)strtol(digits, NULL, 16);
        }
        words[count] = word;
        lengths[count++] = length;
    }
    if (redisAppendCommandArgv(context, count, words, lengths) != REDIS_OK) die(context->errstr);
}

int main(int count, char **words) {
    if (count != 4) die("hiredis SOCKET PROTOCOL WAY");
    int alone = strcmp(words[3], "alone") == 0, multi = strcmp(words[3], "multi") == 0;
    redisContext *context = redisConnectUnix(words[1]);
    if (context == NULL || context->err) die("no connection");
    printf("version %d.%d.%d\n", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    if (strcmp(words[2], "3") == 0) {
        redisAppendCommand(context, "HELLO 3");
        freeReplyObject(next(context));
    }
    if (multi) {
        redisAppendCommand(context, "MULTI");
    }
    char line[MOST_LINE];
    int asked = 0;
    for (; fgets(line, sizeof line, stdin) != NULL; asked++) {
        append(context, line);
        if (alone) show_next(context);
    }
    if (multi) {
        redisAppendCommand(context, "EXEC");
        for (int i = 0; i < asked + 1; i++) freeReplyObject(next(context));
        redisReply *answers = next(context);
        if (answers->type != REDIS_REPLY_ARRAY) die("EXEC answered no array");
        for (size_t i = 0; i < answers->elements; i++) {
            show(answers->element[i]);
            printf("\n");
        }
        freeReplyObject(answers);
    } else if (!alone) {
        for (int i = 0; i < asked; i++) show_next(context);
    }
    redisAppendCommand(context, "QUIT");
    redisReply *last = next(context);
    if (strcmp(last->str, "OK") != 0) die("no OK to QUIT");
    freeReplyObject(last);
    redisFree(context);
    return 0;
}
