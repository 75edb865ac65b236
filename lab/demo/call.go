package demo

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// callSize and callEvery are those of a telephone call: 20 ms of G.711 would be 160 bytes; twice
	// as many packets see a loss twice as exactly.
	callSize  = 160
	callEvery = 10 * time.Millisecond
	// callGrace is how long after the end a packet may still arrive and not count as lost.
	callGrace = 500 * time.Millisecond
)

// call is a one-way stream of numbered UDP packets that nothing repeats: what the network loses stays
// lost and can be counted.
type call struct {
	from net.Conn
	to   net.PacketConn
	stop chan struct{}
	wg   sync.WaitGroup

	mu   sync.Mutex
	came []bool // by number; its length is how many were sent
}

// startCall sends packets over one socket and counts them at another.
func startCall(from net.Conn, to net.PacketConn) *call {
	c := &call{from: from, to: to, stop: make(chan struct{})}
	c.wg.Go(c.send)
	c.wg.Go(c.receive)
	return c
}

func (c *call) send() {
	tick := time.NewTicker(callEvery)
	defer tick.Stop()
	packet := make([]byte, callSize)
	for {
		c.mu.Lock()
		binary.BigEndian.PutUint64(packet, uint64(len(c.came)))
		c.came = append(c.came, false)
		c.mu.Unlock()
		// A packet that the machine itself refuses to send is lost like any other.
		if _, err := c.from.Write(packet); errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case <-c.stop:
			return
		case <-tick.C:
		}
	}
}

func (c *call) receive() {
	packet := make([]byte, 2*callSize)
	for {
		n, _, err := c.to.ReadFrom(packet)
		if err != nil {
			return
		}
		if n != callSize {
			continue
		}
		number := binary.BigEndian.Uint64(packet)
		c.mu.Lock()
		if number < uint64(len(c.came)) {
			c.came[number] = true
		}
		c.mu.Unlock()
	}
}

// mark returns the number of the next packet, for [call.lost].
func (c *call) mark() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.came)
}

// lost counts the packets from one mark to another that have not come.
func (c *call) lost(from, to int) (lost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, came := range c.came[from:to] {
		if !came {
			lost++
		}
	}
	return lost
}

// finish ends the call, waits for stragglers and closes both sockets.
func (c *call) finish() {
	close(c.stop)
	c.to.SetReadDeadline(time.Now().Add(callGrace))
	c.wg.Wait()
	c.from.Close()
	c.to.Close()
}
