/* http/peer.c - finds out whether a client that closed its sending side has closed the whole
 * socket.
 *
 * Both look alike to us: a FIN came. Over the network only an attempt to send tells them apart,
 * because a closed socket answers new data with a reset. If the client runs on this machine, its
 * kernel is ours, and we ask the kernel for the socket at the other end (NETLINK_SOCK_DIAG). A
 * socket that no program holds open any more has inode 0, and later is not found at all. A
 * question costs about 10 us and is asked only once a FIN arrived while a reply is due. */
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/http_internal.h"

typedef struct question {
    struct nlmsghdr head;
    struct inet_diag_req_v2 req;
} question;

/* Writes an address in the form that inet_diag uses, and returns the port. */
static __be16 put_address(__be32 out[4], const struct sockaddr_storage *sa)
{
    if (sa->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;
        memcpy(out, &v6->sin6_addr, 16);
        return v6->sin6_port;
    }
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;
    memcpy(out, &v4->sin_addr, 4);
    return v4->sin_port;
}

/* Asks for the socket whose own end is `theirs`. False: fd is not a connected TCP socket. */
static bool make_question(question *q, int fd)
{
    struct sockaddr_storage ours, theirs;
    socklen_t n = sizeof ours, m = sizeof theirs;
    if (getsockname(fd, (struct sockaddr *)&ours, &n) < 0 ||
        getpeername(fd, (struct sockaddr *)&theirs, &m) < 0)
        return false;
    if (ours.ss_family != AF_INET && ours.ss_family != AF_INET6) return false;
    memset(q, 0, sizeof *q);
    q->head.nlmsg_len = sizeof *q;
    q->head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    q->head.nlmsg_flags = NLM_F_REQUEST;
    q->req.sdiag_family = (__u8)ours.ss_family;
    q->req.sdiag_protocol = IPPROTO_TCP;
    q->req.idiag_states = UINT32_MAX;
    q->req.id.idiag_sport = put_address(q->req.id.idiag_src, &theirs);
    q->req.id.idiag_dport = put_address(q->req.id.idiag_dst, &ours);
    q->req.id.idiag_cookie[0] = q->req.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    return true;
}

http_peer rose_http_peer_ask(int fd)
{
    union {
        struct nlmsghdr head;
        char bytes[1024];
    } answer;
    question q;
    http_peer peer = HTTP_PEER_UNKNOWN;
    if (!make_question(&q, fd)) return peer;
    const int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (nl < 0) return peer;
    /* The kernel puts its answer into the netlink socket during send(), so recv() need not wait. */
    const ssize_t n = send(nl, &q, sizeof q, MSG_NOSIGNAL) == (ssize_t)sizeof q
                          ? recv(nl, &answer, sizeof answer, MSG_DONTWAIT)
                          : -1;
    if (n >= (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg)) &&
        answer.head.nlmsg_type == SOCK_DIAG_BY_FAMILY) {
        struct inet_diag_msg msg;
        memcpy(&msg, NLMSG_DATA(&answer.head), sizeof msg);
        peer = msg.idiag_inode != 0 ? HTTP_PEER_OPEN : HTTP_PEER_CLOSED;
    } else if (n >= (ssize_t)NLMSG_LENGTH(sizeof(int)) && answer.head.nlmsg_type == NLMSG_ERROR) {
        peer = HTTP_PEER_REMOTE; /* there is no such socket on this machine */
    }
    close(nl);
    return peer;
}
