/* What is sent and received: as it is, or with --tls by OpenSSL, in a build with KLOAD_TLS.
 *
 * Sessions are found by their socket, so the modes do not know of them: net_send, net_recv and net_close stand for
 * send, recv and close, with EAGAIN for whatever OpenSSL waits for. net_recv takes all that has come, since what lies
 * decrypted in the library makes no socket readable.
 */
#define _GNU_SOURCE
#include "kload.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SCRATCH_BYTES = 1 << 16 };
static uint8_t scratch[SCRATCH_BYTES];

#ifdef KLOAD_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>

enum { SESSIONS_MAX = 1 << 20, READ_AHEAD_BYTES = 1 << 16 };
static SSL *sessions[SESSIONS_MAX];
static SSL_CTX *context;
static uint32_t wanted = EPOLLIN;

static void make_context(void) {
    context = SSL_CTX_new(TLS_client_method());
    if (!context || !SSL_CTX_load_verify_locations(context, opt.tls, NULL))
        die(2, "--tls %s: no certificates of authorities that can be read", opt.tls);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF); /* every handshake is a whole one */
    if (!opt.is_frugal) { /* fewer calls, for 64 KB of each connection */
        SSL_CTX_set_read_ahead(context, 1);
        SSL_CTX_set_default_read_buffer_len(context, READ_AHEAD_BYTES);
    } else
        SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
}

void net_begin(int fd) {
    if (!opt.tls)
        return;
    if (!context)
        make_context();
    if (fd >= SESSIONS_MAX)
        die(1, "socket %d is beyond the %d that TLS has room for", fd, SESSIONS_MAX);
    sessions[fd] = SSL_new(context);
    if (!sessions[fd] || !SSL_set_fd(sessions[fd], fd))
        die(1, "no memory for a TLS session");
    SSL_set_connect_state(sessions[fd]);
}

void net_handshake(int fd) {
    if (opt.tls && SSL_do_handshake(sessions[fd]) != 1)
        die(1, "TLS handshake: %s", ERR_reason_error_string(ERR_peek_last_error()) ?: "the broker closed it");
}

/* What a call means to who expects a socket: EAGAIN, 0 for the end, or an error. */
static ssize_t result_of(SSL *session, int returned) {
    switch (SSL_get_error(session, returned)) {
    case SSL_ERROR_WANT_READ:
        wanted = EPOLLIN, errno = EAGAIN;
        return -1;
    case SSL_ERROR_WANT_WRITE:
        wanted = EPOLLOUT, errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        errno = errno ? errno : ECONNRESET;
        return -1;
    default:
        wrong("TLS: %s", ERR_reason_error_string(ERR_peek_last_error()));
        errno = EPROTO;
        return -1;
    }
}

static ssize_t tls_send(int fd, const void *data, size_t length) {
    ERR_clear_error();
    int n = SSL_write(sessions[fd], data, length < 1 << 30 ? (int)length : 1 << 30);
    return n > 0 ? n : result_of(sessions[fd], n);
}

static ssize_t tls_recv(int fd, uint8_t *to, size_t room) {
    size_t got = 0;
    while (got < room) {
        size_t most = to ? room - got : room - got < SCRATCH_BYTES ? room - got : SCRATCH_BYTES;
        ERR_clear_error();
        int n = SSL_read(sessions[fd], to ? to + got : scratch, (int)(most < 1 << 30 ? most : 1 << 30));
        if (n <= 0)
            return got ? (ssize_t)got : result_of(sessions[fd], n);
        got += (size_t)n;
    }
    return (ssize_t)got;
}

bool net_has_more(int fd) { return opt.tls && SSL_has_pending(sessions[fd]); }
uint32_t net_wanted(void) { return wanted; }

void net_close(int fd) {
    if (opt.tls && sessions[fd]) {
        SSL_shutdown(sessions[fd]);
        SSL_free(sessions[fd]);
        sessions[fd] = NULL;
    }
    close(fd);
}
#else
void net_begin(int fd) {
    (void)fd;
    if (opt.tls)
        die(2, "--tls: this build is without OpenSSL");
}
void net_handshake(int fd) { (void)fd; }
static ssize_t tls_send(int fd, const void *data, size_t length) { return send(fd, data, length, MSG_NOSIGNAL); }
static ssize_t tls_recv(int fd, uint8_t *to, size_t room) { return recv(fd, to, room, 0); }
bool net_has_more(int fd) { return fd < 0; }
uint32_t net_wanted(void) { return EPOLLOUT; }
void net_close(int fd) { close(fd); }
#endif

ssize_t net_send(int fd, const void *data, size_t length) {
    return opt.tls ? tls_send(fd, data, length) : send(fd, data, length, MSG_NOSIGNAL);
}

ssize_t net_recv(int fd, void *to, size_t room) {
    if (opt.tls)
        return tls_recv(fd, to, room);
    return recv(fd, to ? to : scratch, room, to ? 0 : MSG_TRUNC);
}

ssize_t net_send_parts(int fd, const struct iovec *parts, int count) {
    if (!opt.tls) {
        struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
        return sendmsg(fd, &message, MSG_NOSIGNAL);
    }
    /* The small part shares a TLS record with the beginning of the large one. */
    static uint8_t record[1 << 14];
    size_t at = 0;
    for (int i = 0; i < count && at < sizeof record; i++) {
        size_t n = parts[i].iov_len < sizeof record - at ? parts[i].iov_len : sizeof record - at;
        memcpy(record + at, parts[i].iov_base, n);
        at += n;
    }
    return tls_send(fd, record, at);
}
