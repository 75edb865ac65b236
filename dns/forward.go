package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	miekg "github.com/miekg/dns"
)

const (
	// upstreamTotal is how long an answer may take: less than the 5 s after which
	// the C library gives up on a server (resolv.conf(5), RES_TIMEOUT), so that it
	// hears from us why.
	upstreamTotal = 4500 * time.Millisecond

	// upstreamPace is how long an upstream is waited for alone before the next
	// one is asked as well. An answer that is not in a cache takes some 100 ms,
	// one from far away 500.
	upstreamPace = 800 * time.Millisecond

	// upstreamRounds is how often one that stays silent is asked, because UDP loses
	// packets.
	upstreamRounds = 2
)

// forwarder asks upstreams. It has no state, so it may be used at once.
type forwarder struct {
	pace, total time.Duration
}

// outcome is what became of one attempt.
type outcome struct {
	upstream netip.AddrPort
	reply    *miekg.Msg
	err      error
}

// exchange asks the upstreams in order, the next one when one fails or takes long, and
// returns the first answer that is one. That a name does not exist is one; that a
// server could not or would not say is one only if no other says more.
func (f forwarder) exchange(ctx context.Context, query *miekg.Msg, upstreams []netip.AddrPort) (*miekg.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, f.total)
	defer cancel()
	var turns []netip.AddrPort
	for range upstreamRounds {
		turns = append(turns, upstreams...)
	}
	outcomes := make(chan outcome, len(turns)) // room for those that come after we left
	heard := make(map[netip.AddrPort]bool)
	running := 0
	var second *miekg.Msg
	var failed error
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			for len(turns) > 0 && heard[turns[0]] {
				turns = turns[1:]
			}
			if len(turns) == 0 {
				break
			}
			u := turns[0]
			turns = turns[1:]
			running++
			go func() {
				reply, err := ask(ctx, query, u)
				outcomes <- outcome{u, reply, err}
			}()
			next.Reset(f.pace)
		case o := <-outcomes:
			running--
			heard[o.upstream] = true
			switch {
			case o.err != nil:
				failed = errors.Join(failed, fmt.Errorf("%v: %w", o.upstream, o.err))
			case o.reply.Rcode == miekg.RcodeSuccess, o.reply.Rcode == miekg.RcodeNameError:
				return o.reply, nil
			case second == nil:
				second = o.reply
			}
			next.Reset(0)
		case <-ctx.Done():
			turns, running = nil, 0
			failed = errors.Join(failed, ctx.Err())
		}
		if len(turns) == 0 && running == 0 {
			if second != nil {
				return second, nil
			}
			return nil, failed
		}
	}
}

// ask asks one upstream, by UDP, and by TCP where the answer does not fit.
func ask(ctx context.Context, query *miekg.Msg, upstream netip.AddrPort) (*miekg.Msg, error) {
	reply, err := askBy(ctx, "udp", query, upstream)
	if err != nil || !reply.Truncated {
		return reply, err
	}
	if full, err := askBy(ctx, "tcp", query, upstream); err == nil {
		return full, nil
	}
	return reply, nil // it says itself that there is more
}

func askBy(ctx context.Context, network string, query *miekg.Msg, upstream netip.AddrPort) (*miekg.Msg, error) {
	// A socket of its own for each question: with the random id its random
	// port makes an answer hard to forge (RFC 5452).
	var d net.Dialer
	c, err := d.DialContext(ctx, network, upstream.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	conn := &miekg.Conn{Conn: c, UDPSize: maxUDPReply}
	query = query.Copy()
	query.Id = miekg.Id()
	if err := conn.WriteMsg(query); err != nil {
		return nil, err
	}
	for {
		reply, err := conn.ReadMsg()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if reply != nil && answers(reply, query) && (err == nil || reply.Truncated) {
			return reply, nil
		}
		// By UDP anybody can send anything: go on waiting for the answer. An
		// error of the socket itself is the end.
		if _, broken := errors.AsType[net.Error](err); broken || network == "tcp" {
			if err == nil {
				err = errors.New("the answer is not one to our question")
			}
			return nil, err
		}
	}
}

// answers reports whether a message is the answer to a question of ours.
func answers(reply, query *miekg.Msg) bool {
	if !reply.Response || reply.Opcode != query.Opcode || reply.Id != query.Id || len(reply.Question) != 1 {
		return false
	}
	a, q := reply.Question[0], query.Question[0]
	return strings.EqualFold(a.Name, q.Name) && a.Qtype == q.Qtype && a.Qclass == q.Qclass
}
