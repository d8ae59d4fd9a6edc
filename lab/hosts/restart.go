package hosts

import (
	"fmt"
	"syscall"
	"time"
)

// How long a controller may take to stop.
const stopLimit = 20 * time.Second

// ReloadController of a load balancer: it reads its config again.
func (lab *Lab) ReloadController(name string) error {
	return lab.signal(name, "controller", syscall.SIGHUP)
}

// RestartController of a load balancer, as its service manager would.
func (lab *Lab) RestartController(name string) error {
	controller, known := lab.find(name, "controller")
	if !known || !controller.alive() {
		return fmt.Errorf("restart the controller of %s: it does not run", name)
	}
	if err := controller.stop(stopLimit); err != nil {
		return err
	}
	return lab.StartController(name)
}
