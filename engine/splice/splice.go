// Package splice joins two connections, as every proxy and port forwarder does: what comes out of one goes
// into the other, an end of data is passed on without closing the way back, and a pair on which nothing has
// moved for too long is closed.
package splice

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// IdleTCP is how long a forwarded TCP connection may be silent: what RFC 5382 REQ-5 asks of a NAT, 2 hours and
// 4 minutes. Dead peers are found sooner, by keepalives.
const IdleTCP = 2*time.Hour + 4*time.Minute

// IdleUDP is how long a forwarded UDP flow may be silent: the least that RFC 4787 REQ-5 asks of a NAT.
const IdleUDP = 2 * time.Minute

// chunk is what is read at once: half of what segmentation offload hands over in one piece.
const chunk = 32 << 10

// datagram holds the longest UDP datagram.
const datagram = 1 << 16

var (
	chunks    = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}
	datagrams = sync.Pool{New: func() any { b := make([]byte, datagram); return &b }}
)

// Streams joins two streams until both directions have ended, one has failed, or neither has moved anything
// for idle. It closes both.
func Streams(a, b net.Conn, idle time.Duration) { join(a, b, idle, &chunks, endOfData) }

// Datagrams joins two connections that keep the borders of messages, until one fails or neither has moved
// anything for idle. It closes both.
func Datagrams(a, b net.Conn, idle time.Duration) {
	join(a, b, idle, &datagrams, func(dst net.Conn) { dst.Close() })
}

func endOfData(dst net.Conn) {
	if c, ok := dst.(interface{ CloseWrite() error }); ok {
		c.CloseWrite()
		return
	}
	dst.Close()
}

func join(a, b net.Conn, idle time.Duration, buffers *sync.Pool, end func(dst net.Conn)) {
	closeBoth := func() { a.Close(); b.Close() }
	began := time.Now()
	var moved atomic.Int64 // when, after began
	var watch *time.Timer
	ready := make(chan struct{})
	watch = time.AfterFunc(idle, func() {
		<-ready // watch is set
		if rest := idle - (time.Since(began) - time.Duration(moved.Load())); rest > 0 {
			watch.Reset(rest)
			return
		}
		closeBoth()
	})
	close(ready)
	flow := func(dst, src net.Conn) {
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		for {
			n, err := src.Read(*buf)
			if n > 0 || err == nil { // a datagram may be empty
				moved.Store(int64(time.Since(began)))
				if _, err := dst.Write((*buf)[:n]); err != nil {
					closeBoth()
					return
				}
				moved.Store(int64(time.Since(began)))
			}
			switch {
			case err == nil:
			case errors.Is(err, io.EOF):
				end(dst)
				return
			default:
				closeBoth()
				return
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { flow(a, b) })
	flow(b, a)
	wg.Wait()
	watch.Stop()
	closeBoth()
}
