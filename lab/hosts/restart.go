package hosts

import (
	"fmt"
	"time"
)

// How long a controller may take to stop.
const stopLimit = 20 * time.Second

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
