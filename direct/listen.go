package direct

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"weft"
	"weft/host"
)

// A listener takes connections by one link.
type listener struct {
	net.Listener
	device string
	port   uint16
	share  bool
}

// Listen takes connections by a link, on a port, from now on, by its device or with "" whichever way they come.
// What it took by the link before, elsewhere, it takes no more. With share, other links may have the same port.
func (c *Connector) Listen(link weft.LinkID, device string, port uint16, share bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return errClosed
	}
	if l := c.listeners[link]; l != nil {
		if l.device == device && l.port == port && l.share == share {
			return nil
		}
		l.Close()
		delete(c.listeners, link)
	}
	config := net.ListenConfig{Control: host.BindTo(device, share)}
	config.SetMultipathTCP(false)
	inner, err := config.Listen(context.Background(), "tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return fmt.Errorf("listening on TCP port %d: %w", port, err)
	}
	l := &listener{inner, device, port, share}
	c.listeners[link] = l
	c.ended.Go(func() { c.accept(l, link) })
	return nil
}

// Unlisten takes no more connections by links of which keep is false.
func (c *Connector) Unlisten(keep func(weft.LinkID) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for link, l := range c.listeners {
		if !keep(link) {
			l.Close()
			delete(c.listeners, link)
		}
	}
}

// Listens reports whether connections are taken by a link.
func (c *Connector) Listens(link weft.LinkID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listeners[link] != nil
}

// acceptPause is how long it waits when the system has no more sockets for it.
const acceptPause = 100 * time.Millisecond

// accept takes connections until the listener is closed.
func (c *Connector) accept(l *listener, link weft.LinkID) {
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select {
			case <-c.ctx.Done():
				return
			case <-time.After(acceptPause):
				continue
			}
		}
		if !c.stranger(conn) {
			conn.Close()
			return
		}
		c.ended.Go(func() {
			defer c.known(conn)
			if err := c.welcome(conn, link); err != nil {
				conn.Close() // without a word
				c.cfg.Logger.Debug("a TCP connection was not taken", "from", conn.RemoteAddr(), "error", err)
			}
		})
	}
}

// stranger makes room for a connection of which it is not known whose it is.
func (c *Connector) stranger(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	if len(c.strangers) >= Strangers {
		c.strangers[0].Close() // its goroutine ends, and finds itself gone from the list
		c.strangers = slices.Delete(c.strangers, 0, 1)
	}
	c.strangers = append(c.strangers, conn)
	return true
}

// known takes a connection from the strangers'.
func (c *Connector) known(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.strangers = slices.DeleteFunc(c.strangers, func(s net.Conn) bool { return s == conn })
}
