package bench

import (
	"encoding/binary"
	"sync"
	"time"

	"weft/lab/netns"
)

// An orderMeter watches the overlay's interface of the host that receives a connection, and counts the packets that come
// after a later one: what the inner flow sees of reordering, and nothing of what it lost. Linux numbers a connection's
// packets in the IP header (inet_id), those sent again anew, so the numbers tell both apart, which TCP's cannot.
type orderMeter struct {
	packets *netns.Packets
	port    uint16 // of either end: the listener's

	mu      sync.Mutex
	counts  orderCounts
	bytes   int64 // of payload, those behind a hole too
	highest uint16
	any     bool
}

type orderCounts struct {
	Packets uint64 `json:"packets"`
	Late    uint64 `json:"late"`       // after a later one
	Depth   int    `json:"most_depth"` // by how many packets at most
}

// watchOrder begins to watch.
func watchOrder(h *netns.Host, device string, port uint16) (*orderMeter, error) {
	p, err := h.OpenHeads(device)
	if err != nil {
		return nil, err
	}
	m := &orderMeter{packets: p, port: port}
	everyPace(func(time.Time, []byte) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.look() == nil // or it is closed
	})
	return m, nil
}

// look counts what has come. M.mu is held.
func (m *orderMeter) look() error {
	if m.packets == nil {
		return nil
	}
	return m.packets.Heads(m.take)
}

// take counts one packet or super-packet of so many bytes, that begins with a virtio-net header. M.mu is held.
func (m *orderMeter) take(b []byte, size int) {
	const header = 10
	if len(b) < header+20+20 || b[header]>>4 != 4 || b[header+9] != 6 {
		return
	}
	ip := b[header:]
	begin := int(ip[0]&15) * 4
	if len(ip) < begin+20 {
		return
	}
	tcp := ip[begin:]
	if binary.BigEndian.Uint16(tcp) != m.port && binary.BigEndian.Uint16(tcp[2:]) != m.port {
		return
	}
	payload := size - header - begin - int(tcp[12]>>4)*4
	if payload <= 0 {
		return
	}
	count := 1
	if each := int(binary.NativeEndian.Uint16(b[4:])); b[1] != 0 && each > 0 {
		count = (payload + each - 1) / each
	}
	m.count(binary.BigEndian.Uint16(ip[4:]), count, payload)
}

// count takes packets with numbers that follow each other. M.mu is held.
func (m *orderMeter) count(id uint16, count, payload int) {
	m.bytes += int64(payload)
	m.counts.Packets += uint64(count)
	last := id + uint16(count-1)
	if ahead := int16(last - m.highest); !m.any || ahead > 0 {
		m.highest, m.any = last, true
		return
	}
	m.counts.Late += uint64(count)
	m.counts.Depth = max(m.counts.Depth, int(m.highest-id))
}

// reset returns the counts since it was last asked.
func (m *orderMeter) reset() orderCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.look() // closed: there is nothing more
	c := m.counts
	m.counts = orderCounts{}
	return c
}

// An arrival is what comes over time.
type arrival struct {
	meter *orderMeter
	bytes int64
	at    time.Duration
	mbit  []float64
}

// follow begins to note what comes. Nothing does where nobody watches.
func (m *orderMeter) follow() *arrival {
	a := &arrival{meter: m}
	if m != nil {
		a.bytes = m.came()
	}
	return a
}

// look notes how much has come since it last looked.
func (a *arrival) look(now time.Duration) {
	if a.meter == nil {
		return
	}
	bytes := a.meter.came()
	a.mbit = append(a.mbit, round(float64(bytes-a.bytes)*8/1e6/(now-a.at).Seconds()))
	a.bytes, a.at = bytes, now
}

// came is how much payload has come so far, in bytes.
func (m *orderMeter) came() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.look()
	return m.bytes
}

func (m *orderMeter) close() { m.packets.Close() }
