package netns

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"weft"
	"weft/lab/router"
	"weft/lab/vnet"
)

// ProgramConfig is what a router that is a program of its own is told: `weft lab router` in a namespace that somebody
// else has made, for laboratories that are not this package's.
type ProgramConfig struct {
	// InsideDevice and OutsideDevice are the TAP devices that it makes. Who started it plugs them in.
	InsideDevice  string `json:"inside_device"`
	OutsideDevice string `json:"outside_device"`
	// Events asks for a line of JSON for each packet.
	Events bool          `json:"events"`
	Router router.Config `json:"router"`
}

// flushEvery is how long an event waits for others to be written with.
const flushEvery = 50 * time.Millisecond

// ServeRouter runs a router in the network namespace of this process, which must not be the machine's own, until ctx
// ends. Its configuration is the first JSON value of config; commands are lines of the rest, or of commands if that is
// another reader: forget, rebind, block udp, allow udp, up, down, link and a vnet.LinkConfig in JSON, counts. To out it
// writes lines of JSON: {"ready":true}, events, counts, and {"code":"bad-request","message":"..."} for a command that makes no sense.
func ServeRouter(ctx context.Context, config, commands io.Reader, out io.Writer) error {
	var c ProgramConfig
	d := json.NewDecoder(config)
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return fmt.Errorf("reading the router's configuration: %w", err)
	}
	if commands == nil {
		commands = io.MultiReader(d.Buffered(), config)
	}
	if c.InsideDevice == "" || c.OutsideDevice == "" {
		return errors.New("the router's configuration names no devices: inside_device and outside_device")
	}
	w := &lineWriter{out: out}
	if c.Events {
		c.Router.Trace = func(e router.Event) { w.write(e) }
	}
	bay, err := newPatchbay()
	if err != nil {
		return err
	}
	defer bay.close()
	var fds [2]int
	engine, err := router.New(c.Router, func(to router.Leg, frame []byte) { writeTAP(fds[to], frame) })
	if err != nil {
		return err
	}
	if fds[router.Inside], err = openTAP(c.InsideDevice); err != nil {
		return err
	}
	if fds[router.Outside], err = openTAP(c.OutsideDevice); err != nil {
		closeTAP(fds[router.Inside])
		return err
	}
	if err := bay.add(engine, fds); err != nil {
		return err
	}
	for _, device := range []string{c.InsideDevice, c.OutsideDevice} {
		if err := tool("", "ip", "link", "set", device, "up"); err != nil {
			return err
		}
	}
	w.write(struct {
		Ready bool `json:"ready"`
	}{true})
	go obey(commands, bay, engine, w)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		if err := w.flush(); err != nil {
			return fmt.Errorf("writing the router's events: %w", err)
		}
		select {
		case <-ctx.Done():
			return w.flush()
		case <-tick.C:
		}
	}
}

// obey does what lines ask for, to their end.
func obey(commands io.Reader, bay *patchbay, engine *router.Router, w *lineWriter) {
	lines := bufio.NewScanner(commands)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		var err error
		var counts map[string]uint64
		closed := bay.do(func() { counts, err = command(engine, line) })
		switch {
		case closed != nil:
			return
		case err != nil:
			w.write(weft.Error{Code: weft.CodeBadRequest, Message: err.Error()})
		case counts != nil:
			w.write(struct {
				Counts map[string]uint64 `json:"counts"`
			}{counts})
		}
	}
}

// command lets the router do what one line says.
func command(engine *router.Router, line string) (counts map[string]uint64, err error) {
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case line == "forget":
		engine.Forget()
	case line == "rebind":
		engine.Rebind(time.Now())
	case line == "block udp":
		engine.SetBlock(router.Block{All: true})
	case line == "allow udp":
		engine.SetBlock(router.Block{})
	case line == "up", line == "down":
		engine.SetUp(line == "up")
	case line == "counts":
		return engine.Counts(), nil
	case word == "link":
		var l vnet.LinkConfig
		if err = json.Unmarshal([]byte(rest), &l); err == nil {
			err = engine.SetLink(l)
		}
	default:
		err = errors.New("expected forget, rebind, block udp, allow udp, up, down, counts, or link and its JSON")
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	return nil, nil
}

// maxUnwritten is how many bytes of lines wait for a reader that is slow. What is more is lost, and said to be: a router
// does not stop for who watches it.
const maxUnwritten = 16 << 20

// A lineWriter collects lines of JSON until they are flushed.
type lineWriter struct {
	out  io.Writer // of flush alone
	mu   sync.Mutex
	buf  []byte
	lost int
}

func (l *lineWriter) write(v any) {
	b, err := json.Marshal(v)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || len(l.buf)+len(b) > maxUnwritten {
		l.lost++
		return
	}
	l.buf = append(append(l.buf, b...), '\n')
}

// flush writes what there is. One goroutine calls it.
func (l *lineWriter) flush() error {
	l.mu.Lock()
	b, lost := l.buf, l.lost
	l.buf, l.lost = nil, 0
	l.mu.Unlock()
	if lost > 0 {
		b = fmt.Appendf(b, "{\"lost_lines\":%d}\n", lost)
	}
	_, err := l.out.Write(b)
	return err
}
