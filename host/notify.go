package host

import (
	"fmt"
	"net"
	"os"
)

// NotifyReady tells the service manager that the service is up (sd_notify(3)).
// Without a service manager that wants to know it does nothing.
func NotifyReady() error { return notifyManager("READY=1") }

// NotifyStopping tells the service manager that the service is on its way down.
func NotifyStopping() error { return notifyManager("STOPPING=1") }

func notifyManager(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A leading @ is the abstract namespace, in Go as in sd_notify.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the service manager %s: %w", state, err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("tell the service manager %s: %w", state, err)
	}
	return nil
}
